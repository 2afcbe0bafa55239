"""Generation with a decoder or an encoder-decoder and its KV cache."""
