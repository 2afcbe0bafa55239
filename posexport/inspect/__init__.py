"""Look into any bundle or ONNX file: audit, explain, report, bench."""
