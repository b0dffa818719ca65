"""Figures over prompts, and the regression matrix."""
