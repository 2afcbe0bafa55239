"""Who answers: a graph as ONNX Runtime runs it, or a copy of it that rounds to 16 bits."""
