"""All encodings side by side, measured: trained on the same tasks, exported, run on ONNX Runtime."""
