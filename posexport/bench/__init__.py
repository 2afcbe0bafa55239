"""Time and memory of graphs of posexport and of third-party exporters: fresh processes, interleaved calls."""
