"""A length that became a constant: a Python int, a loop over tokens, a NumPy mask, a view with literals."""

from posexport.export.refusals.refusal import Refusal

REFUSAL = Refusal(
    says="your code specialized it to be a constant (11)",
    pattern=r"fixed at \d+ by the trace|specialized it to be a constant|inferred to be a constant|Constraints violated",
    meaning="makes a constant of a size, so that the graph takes no other",
    remedy="compute it from x.shape with torch.arange(x.shape[1]) and the like, not int(), range(), NumPy or a loop",
    threads=("pytorch/pytorch 140011", "pytorch/pytorch 133653"),
)
