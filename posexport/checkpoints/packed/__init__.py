"""Checkpoints with weights of 4 bits: how GPTQ, AWQ and compressed-tensors store them."""
