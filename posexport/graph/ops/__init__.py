"""The catalogue of position operators: a file for each, which registers it."""
