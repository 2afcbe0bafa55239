"""A module for sentence-transformers 5 and 6 that runs a bundle in place of a PyTorch model."""
