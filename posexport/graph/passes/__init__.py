"""Graph passes: one file each, in the order of `posexport.graph.passes.pipeline`."""
