"""PX312: GELU of an odd number of float16 elements, of which CUDA leaves out the last."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.base.targets.target import MICROSOFT
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    for node in subject.nodes:
        output = node.outputs[0]
        channels = None if output.shape is None or not len(output.shape) else output.shape[-1]
        if _by_pairs(node) and output.dtype == ir.DataType.FLOAT16 and isinstance(channels, int) and channels % 2:
            yield Place(
                f"{node.op_type} {output.name!r} has {channels} channels in float16: where batch and tokens are odd "
                "too, CUDA does not compute the last element",
                [node],
            )


def _by_pairs(node: ir.Node) -> bool:
    """Whether ONNX Runtime's CUDA kernel computes pairs of float16 elements; with an odd bias it does not."""
    if (node.domain, node.op_type) == (MICROSOFT, "FastGelu"):
        return len(node.inputs) == 1 or node.inputs[1] is None
    return (node.domain, node.op_type) == ("", "Gelu") and node.attributes.get_string("approximate", "none") == "tanh"


RULE = Rule(
    code="PX312",
    name="odd-gelu",
    severity="warning",
    finds="the tanh approximation of GELU of an odd number of float16 elements",
    why="ONNX Runtime's CUDA kernel computes half as many pairs as there are elements, rounded down: the last element "
    "is whatever was in memory, and the last token of the last row is wrong (seen with 1.31.1 on an H200).",
    remedy="Keep that GELU in float32 (block it in the converter, for example op_block_list), or pad its channels to "
    "an even number; posexport convert --target cuda --precision fp16 computes it in float32.",
    check=_check,
    bad="""
        <ir_version: 10, opset_import: ["": 20]>
        odd (float16[B, T, 13] x) => (float16[B, T, 13] y)
        { y = Gelu <approximate = "tanh"> (x) }
    """,
    good="""
        <ir_version: 10, opset_import: ["": 20]>
        even (float16[B, T, 12] x) => (float16[B, T, 12] y)
        { y = Gelu <approximate = "tanh"> (x) }
    """,
)
