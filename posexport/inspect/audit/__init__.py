"""Audit of any ONNX file: what it computes wrong, and at which sizes. Imports no torch."""
