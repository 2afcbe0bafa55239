"""PX402: operators without a kernel that ONNX Runtime replaces by the nodes of their definition."""

from collections.abc import Iterator

from posexport.base.targets.listed import audited
from posexport.inspect.audit.analyses.kernels import runtime
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: operators -> how many nodes their definitions have, measured in ONNX Runtime 1.31 and 1.32; others have few
_NODES = {
    "Attention": "about 60 to 85 nodes",
    "GroupNormalization": "25 to 29 nodes",
    **dict.fromkeys(
        ("RotaryEmbedding", "RMSNormalization", "LayerNormalization", "MeanVarianceNormalization", "Gelu"),
        "several nodes",
    ),
    **dict.fromkeys(("LinearAttention", "CausalConvWithState", "SoftmaxCrossEntropyLoss"), "many nodes"),
}


def _check(subject: Subject) -> Iterator[Place]:
    provider = audited()[subject.provider]
    # Softmax, Gelu .. in float16 on the CPU are counted with all that it computes in float32
    apart = [
        missing.node
        for missing in subject.missing_kernels
        if missing.fate == "function"
        and missing.node.op_type in _NODES
        and (missing.dtype != "float16" or subject.provider != "cpu")
    ]
    for operator in dict.fromkeys(node.op_type for node in apart):
        nodes = [node for node in apart if node.op_type == operator]
        yield Place(
            f"{runtime(provider.ort_name)} has no kernel of {provider.label} for {operator} at "
            f"opset {subject.opset()} and computes each of {len(nodes)} by {_NODES[operator]}",
            nodes,
        )


RULE = Rule(
    code="PX402",
    name="taken-apart",
    severity="note",
    finds="an operator that the provider computes by the nodes of its definition",
    why="Outputs are right. Fused kernels (attention that never holds all scores) are lost, with time and memory.",
    remedy="Export at an opset that the provider has kernels for: opset 24 for Attention on the CPU of ONNX Runtime "
    "1.32; posexport convert chooses operators by the provider's kernels.",
    check=_check,
    reads="kernels",
    bad="""
        <ir_version: 8, opset_import: ["": 21]>
        apart (float[B, 4, T] x, float[4] scale, float[4] bias) => (float[B, 4, T] y)
        { y = GroupNormalization <num_groups = 2> (x, scale, bias) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 21]>
        whole (float[B, 4, T] x, float[4] scale, float[4] bias) => (float[B, 4, T] y)
        <float[2] one = {1.0, 1.0}, float[2] none = {0.0, 0.0}, int64[3] apart = {0, 2, -1}, int64[3] back = {0, 4, -1},
         int64[2] axes = {0, 2}>
        {
            grouped = Reshape (x, apart)
            normed = InstanceNormalization (grouped, one, none)
            joined = Reshape (normed, back)
            weights = Unsqueeze (scale, axes)
            offsets = Unsqueeze (bias, axes)
            scaled = Mul (joined, weights)
            y = Add (scaled, offsets)
        }
    """,
)
