"""Tasks of models. Imports nothing heavy."""
