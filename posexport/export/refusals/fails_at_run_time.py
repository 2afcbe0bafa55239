"""ONNX Runtime fails at a size other than the traced one: a size is baked into a node."""

from posexport.export.refusals.refusal import Refusal

REFUSAL = Refusal(
    says="Non-zero status code returned while running Gather node. Name:'node_select_7'",
    pattern=r"Non-zero status code returned while running (\w+) node",
    meaning="became a node {0} that ONNX Runtime cannot run at another size: a size of the traced example is in it",
    remedy="compute its sizes from x.shape, or write it in operations whose sizes follow from their inputs",
    threads=("pytorch/pytorch 148886", "pytorch/pytorch 191855"),
)
