"""Orders of events: each stage takes a checkpoint and leaves one."""
