"""Attention that users write by PyTorch's own functions, as posexport's attention while a module is traced."""
