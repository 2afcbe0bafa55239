"""PX405: attention of several nodes, for which the provider has one operator."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.base.targets.dtypes import FLOATS
from posexport.base.targets.listed import audited
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

_FUSED, _DOMAIN = "MultiHeadAttention", "com.microsoft"


def _check(subject: Subject) -> Iterator[Place]:
    # a bundle's target was asked for: portable ones have standard operators, and the manifest has every reason
    if subject.by_posexport:
        return
    provider = audited()[subject.provider]
    by_hand = [attention for attention in subject.attentions if not attention.fused]
    onnx_type = (by_hand[0].node.outputs[0].dtype or ir.DataType.FLOAT).name if by_hand else ""
    dtype = next((dtype for dtype in FLOATS if dtype.onnx == onnx_type), None)
    if dtype is None or not provider.has_kernel(_FUSED, _DOMAIN, 1, dtype):
        return
    biased = sum(bool(attention.added) for attention in by_hand)
    multiple = provider.bias_multiples.get(dtype.name)
    which = (
        f"; {biased} of them add a bias or mask to the scores, which fused kernels take where the number of keys is a "
        f"multiple of {multiple}"
        if biased and multiple
        else ""
    )
    number = f"{len(by_hand)} attention{'s' if len(by_hand) > 1 else ''}"
    yield Place(
        f"{number} of several nodes (MatMul, Softmax, MatMul) where {provider.label} has the operator {_FUSED}{which}",
        [attention.node for attention in by_hand],
    )


RULE = Rule(
    code="PX405",
    name="unfused-attention",
    severity="note",
    finds="attention of several nodes that the provider has one operator for",
    why="The scores of all heads, [B, H, T, T], are written to memory and read again several times; fused kernels keep "
    "them in the processor's caches.",
    remedy="posexport audit --fix PX405 writes the operator where it is certain, and compares it with the file; "
    "posexport convert --target cpu (or cuda) does from the checkpoint.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        by_hand (float[B, 5, T, 4] q, float[B, 5, 4, T] k, float[B, 5, T, 4] v) => (float[B, 5, T, 4] y)
        {
            scores = MatMul (q, k)
            p = Softmax <axis = -1> (scores)
            y = MatMul (p, v)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
        fused (float[B, T, 20] q, float[B, T, 20] k, float[B, T, 20] v) => (float[B, T, 20] y)
        { y = com.microsoft.MultiHeadAttention <num_heads = 5> (q, k, v) }
    """,
)
