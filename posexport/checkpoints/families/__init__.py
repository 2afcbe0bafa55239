"""Families of checkpoints: a file for each ``model_type``, with the types derived from it."""
