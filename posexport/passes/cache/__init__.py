"""A KV cache for a decoder that was traced without one (the pass `posexport.passes.insert_cache`)."""
