"""Inputs of sizes that a model does not accept make the graph fail, with the reason."""
