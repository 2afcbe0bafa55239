"""Weights of 4 or 8 bits in blocks that share a scale; activations stay in floating point.

``rounding`` makes the integers and their scales, ``packing`` the tensors that operators read, ``quantize`` is the
pass.
"""
