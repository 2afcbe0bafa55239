"""Attention, rotations and biases that users write in PyTorch operators, as nodes of domain ``posexport``."""
