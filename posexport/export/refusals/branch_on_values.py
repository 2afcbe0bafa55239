"""A Python decision by a tensor's values: `mask.any()`, `.item()`, the running length as a tensor."""

from posexport.export.refusals.refusal import Refusal

REFUSAL = Refusal(
    says="GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 1)",
    pattern=r"Could not guard on data-dependent expression|Dynamic control flow is not supported",
    meaning="decides in Python by a tensor's values, and a graph has one way for all of them",
    remedy="compute both ways and choose with torch.where, or mask; take a length from x.shape[1], not from a tensor",
    threads=("pytorch/pytorch 153955", "pytorch/pytorch 157355", "pytorch/pytorch 163791"),
)
