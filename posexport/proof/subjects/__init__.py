"""Subjects of a proof: a graph in ONNX Runtime, or a copy of it that rounds to 16 bits."""
