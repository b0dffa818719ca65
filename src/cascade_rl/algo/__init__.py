"""Plain functions on tensors: packing and losses. No model, no config, no I/O."""
