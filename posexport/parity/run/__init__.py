"""How a point is run: by PyTorch in float64, by PyTorch in the model's precision, and by ONNX Runtime."""
