"""A generative reward model's side of a verdict: what it is asked, what its words mean, and how many verdicts become rewards.

No model is asked here: `tasks.judged` puts the questions to one, behind the `Chat` door.
"""
