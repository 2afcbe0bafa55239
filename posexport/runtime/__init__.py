"""Running a bundle with ONNX Runtime: the provider asked for or an error, checked inputs, and where each node ran."""
