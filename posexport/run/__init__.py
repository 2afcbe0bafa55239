"""A bundle answers: sessions of ONNX Runtime, generation, embeddings, pipelines; without PyTorch."""
