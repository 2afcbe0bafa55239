"""PX404: half precision where the provider computes in float32, with casts around each node."""

from collections import Counter
from collections.abc import Iterator

from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: kinds that a sentence names
_NAMED = 4


def _check(subject: Subject) -> Iterator[Place]:
    # a bundle in float16 was asked for: its manifest says what the CPU does with it
    if subject.by_posexport:
        return
    widened = [missing.node for missing in subject.missing_kernels if missing.fate == "cast"]
    if any(node.op_type in ("MatMul", "Gemm", "Conv", "FusedMatMul") for node in widened):
        kinds = Counter(node.op_type for node in widened).most_common()
        named = ", ".join(f"{count} {operator}" for operator, count in kinds[:_NAMED])
        rest = " .." if len(kinds) > _NAMED else ""
        yield Place(f"the CPU computes {named}{rest} in float32, with casts from and to float16 around them", widened)


RULE = Rule(
    code="PX404",
    name="half-on-cpu",
    severity="note",
    finds="float16 products on the CPU provider, which has no kernels for them",
    why="ONNX Runtime casts inputs and weights to float32 in every call: slower than the float32 file, and no smaller "
    "in memory.",
    remedy="Give the CPU the float32 or int8 file; float16 is for CUDA and WebGPU (--provider cuda).",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        half (float16[B, 4] x, float16[4, 3] w) => (float16[B, 3] y)
        { y = MatMul (x, w) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        single (float[B, 4] x, float[4, 3] w) => (float[B, 3] y)
        { y = MatMul (x, w) }
    """,
)
