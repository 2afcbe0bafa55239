"""Graph passes: one file each, in the order of `posexport.passes.pipeline`."""
