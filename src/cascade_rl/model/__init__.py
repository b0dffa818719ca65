"""Questions to and about a model: where weights come from, messages to tokens and back, the trained policy, its optimizer."""
