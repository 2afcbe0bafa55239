"""A Python branch by a length: the graph has the one that the traced length took."""

from posexport.export.refusals.refusal import Refusal

REFUSAL = Refusal(
    says="was decided False by a size while the module was traced",
    pattern=r"was decided (True|False) by a size while the module was traced",
    meaning="was decided once for all lengths, as {0}, when the module was traced",
    remedy="compute both ways and choose with torch.where, or convert with a --max-length below its limit",
    threads=("pytorch/pytorch 148568", "pytorch/pytorch 168908"),
)
