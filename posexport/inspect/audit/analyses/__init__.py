"""What several rules need to know of a graph: sizes, attention, positions."""
