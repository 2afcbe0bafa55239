"""Weights of 4 or 8 bits in blocks that share a scale; activations stay in floating point.

``rounding`` makes the whole numbers and their scales, ``packing`` the tensors that operators read, ``products`` and
``tables`` the nodes, ``quantize`` is the pass.
"""
