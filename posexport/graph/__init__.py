"""Graphs of onnx_ir: what to ask them (queries), how to change them (edits), how to write them (builder)."""
