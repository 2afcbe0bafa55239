"""`posexport.torch_onnx_export`: the call of ``torch.onnx.export``, by a conversion with its proof."""
