"""FlexAttention, which ONNX has only as a preview that ONNX Runtime does not register."""

from posexport.export.refusals.refusal import Refusal

REFUSAL = Refusal(
    says="There was no rule registered for HigherOrderOperator flex_attention",
    pattern=r"flex_attention",
    meaning="calls flex_attention, for which ONNX has a preview operator that ONNX Runtime does not run",
    remedy="call F.scaled_dot_product_attention, with what score_mod and block_mask do as a float mask",
    threads=("onnx/onnx 7494",),
)
