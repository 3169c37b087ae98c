"""Recall: from a question to the passages that matter, under a token budget. Pure; the layer brings store and encoder."""
