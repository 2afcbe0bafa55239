"""The proof of a graph that another tool made."""
