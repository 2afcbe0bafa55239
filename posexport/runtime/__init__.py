"""Runs bundles with ONNX Runtime, without PyTorch."""
