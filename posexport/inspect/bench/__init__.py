"""Time and memory of graphs: fresh processes, interleaved calls."""
