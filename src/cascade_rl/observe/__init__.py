"""What a run shows of itself: its logs, its progress on the terminal, its report."""
