"""A KV cache for a decoder that was traced without one: one pass on the graph, which nothing calls yet but its test."""
