"""A source becomes a graph, a proof and a bundle.

`convert` is the entry, `verification` checks what was written; `export` writes the graph; each step has a file.
"""
