"""The file of a full model, compared with its reduced model's, which the grid proves, and with the checkpoint.

``structure`` compares the graphs: each layer computes what the reduced model's layer of its kind does, and reads the
layer before it. ``identify`` says which parameter a stored float weight is, bit by bit; ``quantized`` checks integers.
"""
