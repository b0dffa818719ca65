"""Questions to a model: token ids in, token ids and log-probs out."""
