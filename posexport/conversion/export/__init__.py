"""From a module to a finished ONNX graph: trace, guard, attach functions, save."""
