"""Attention by PyTorch's functions as attention nodes, while a user's module is traced."""
