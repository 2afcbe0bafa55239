"""Proof that an ONNX model computes what its definition does, measured by PyTorch's error.

``prove`` needs torch and the source; ``check_sample`` needs neither: it reads the sample that a bundle carries.
Shape letters: B batch, T tokens.
"""
