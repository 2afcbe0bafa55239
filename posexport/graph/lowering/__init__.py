"""Ways to compute attention with position terms: one file a way."""
