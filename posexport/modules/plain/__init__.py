"""A KV cache for decoders that were written without one, of PyTorch's own operations alone."""
