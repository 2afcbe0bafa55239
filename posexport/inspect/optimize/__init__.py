"""Optimises an ONNX file of any tool by posexport's passes and lowerings, without its source."""
