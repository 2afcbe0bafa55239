"""Families of checkpoints: a file for each, or for those of one ``model_type`` and its relatives."""
