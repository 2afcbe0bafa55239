"""A KV cache for a decoder that was traced without one (the pass `posexport.graph.passes.insert_cache`)."""
