"""Checkpoint directories as transformers wrote them up to 4.57. Nothing in a directory is ever executed."""
