"""The weights of a checkpoint and those of a graph, each side accounted for by the other."""
