"""The catalogue of position encodings: a file for each, which registers it."""
