"""SDPA without an axis of heads, which ONNX's Attention does not take."""

from posexport.export.refusals.refusal import Refusal

REFUSAL = Refusal(
    says="AssertionError: only 4D query, key, and value are supported",
    pattern=r"only 4D query, key, and value are supported",
    meaning="calls F.scaled_dot_product_attention without an axis of heads, and ONNX's Attention has one",
    remedy="give query, key and value four axes, x.unsqueeze(1), and take it away with .squeeze(1)",
    threads=(),
)
