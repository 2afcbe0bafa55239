"""int8 linear projections: a scale for every channel of the weights, and one for every row of activations.

A row is what one token has: its scale depends on that token alone, so a row gives the same bits alone, in any batch,
in prefill and in a decode step. ONNX Runtime's ``quantize_dynamic`` takes one scale for the whole tensor instead.
"""
