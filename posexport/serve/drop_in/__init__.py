"""`torch.onnx.export`'s call, answered by a conversion that is proven before the file appears."""
