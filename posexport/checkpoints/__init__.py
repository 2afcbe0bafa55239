"""Checkpoint folders: what their files ask of a tokenizer, made part of the bundle's tokenizer.json."""
