"""Bundles in other programs: serving engines, deployment files, the call of torch.onnx.export."""
