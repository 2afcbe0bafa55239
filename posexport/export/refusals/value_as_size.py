"""A value of a tensor that a Python loop or a shape needs as a number."""

from posexport.export.refusals.refusal import Refusal

REFUSAL = Refusal(
    says="Could not extract specialized integer from data-dependent expression u0",
    pattern=r"Could not extract specialized integer from data-dependent expression",
    meaning="needs a tensor's value as a Python number (`range`, a list, a size), and a graph has none",
    remedy="compute all rows or tokens at once and mask those that do not count",
    threads=("pytorch/pytorch 143222", "pytorch/pytorch 127153"),
)
