"""Graders: verdicts on text. A grader takes what a model wrote and gives a `Reward`; it never runs what it reads."""
