"""Antialiased interpolation, as of tables of image positions: the graph is written and runs, and its values differ."""

from posexport.export.refusals.refusal import Refusal

REFUSAL = Refusal(
    says="a node Resize with antialias, in a graph that is not proven",
    pattern=r"a node Resize with antialias, in a graph that is not proven",
    meaning="interpolates with antialias=True, which ONNX's Resize computes with other weights",
    remedy="interpolate with antialias=False, or in __init__ where the size is fixed",
    threads=("pytorch/pytorch 116306",),
)
