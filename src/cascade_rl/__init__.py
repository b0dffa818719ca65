"""cascade-rl: one recipe, one command, a whole post-training cascade for language models."""

__version__ = "0.1.0"
