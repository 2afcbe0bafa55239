"""Whether positions are rounded to 16 bits anywhere in a graph: read off the graph, not off its outputs."""
