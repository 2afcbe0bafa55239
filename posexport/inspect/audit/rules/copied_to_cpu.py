"""PX407: nodes in the middle of a device's graph that run on the CPU, with copies."""

from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from posexport.base.targets.listed import audited
from posexport.inspect.audit.analyses.kernels import runtime
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: types of sizes, indices and masks; None: unknown
_OF_THE_HOST = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL, ir.DataType.STRING, None)


def _check(subject: Subject) -> Iterator[Place]:
    provider = audited()[subject.provider]
    if provider.ort_name == "CPUExecutionProvider":
        return
    # what compiles a graph in pieces is interrupted by sizes and masks too
    every = bool(provider.sizes)
    on_cpu = [missing for missing in subject.missing_kernels if missing.fate == "cpu"]
    copied = [missing for missing in on_cpu if every or _has_values(missing.node)]
    if copied:
        total = f" ({len(copied)} of {len(subject.nodes)} nodes)" if every else ""
        counts = Counter(f"{each.node.op_type}{f' in {each.dtype}' if each.dtype else ''}" for each in copied)
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common(5))
        yield Place(
            f"{kinds}: {runtime(provider.ort_name)} has no kernels of {provider.label} for them, so "
            f"that they run on the CPU{total}, with copies before and after",
            [missing.node for missing in copied],
        )


def _has_values(node: ir.Node) -> bool:
    """Whether a node reads floats or quantized values; the host computes sizes, indices and masks in any case."""
    return any(value is not None and value.dtype not in _OF_THE_HOST for value in node.inputs)


RULE = Rule(
    code="PX407",
    name="copied-to-cpu",
    severity="note",
    finds="nodes that the device's provider leaves to the CPU (--provider cuda, coreml ..)",
    why="Every such node waits for the device and copies its inputs and outputs; CUDA graphs are impossible.",
    remedy="Export with operators that the provider has; posexport convert --target cuda has them for CUDA, --static "
    "leaves none that compute sizes.",
    check=_check,
    reads="kernels",
    provider="cuda",
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        copied (float[B, T, 4] x) => (float[B, T, 4] y)
        { y = Det (x) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        stays (float[B, 4] x, float[4, 3] w) => (float[B, 3] y)
        { y = MatMul (x, w) }
    """,
)
