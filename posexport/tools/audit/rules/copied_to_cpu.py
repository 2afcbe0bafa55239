"""PX407: nodes in the middle of a device's graph that run on the CPU, with copies."""

from collections import Counter
from collections.abc import Iterator

from posexport.targets.providers import PROVIDERS
from posexport.tools.audit.analyses.kernels import table_version
from posexport.tools.audit.rule import Place, Rule
from posexport.tools.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    provider = PROVIDERS[subject.provider]
    if provider.ort_name == "CPUExecutionProvider":
        return
    # sizes and indices are computed on the host in any case
    copied = [
        missing.node
        for missing in subject.missing_kernels
        if missing.fate == "cpu"
        and any(v is not None and v.dtype is not None and v.dtype.is_floating_point() for v in missing.node.inputs)
    ]
    if copied:
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(node.op_type for node in copied).most_common(5))
        yield Place(
            f"{kinds}: ONNX Runtime {table_version(provider.ort_name)} has no kernels of {provider.label} for them and "
            "runs them on the CPU, with copies before and after",
            copied,
        )


RULE = Rule(
    code="PX407",
    name="copied-to-cpu",
    severity="note",
    finds="nodes that the device's provider leaves to the CPU (--provider cuda)",
    why="Every such node waits for the device and copies its inputs and outputs; CUDA graphs are impossible.",
    remedy="Export with operators that the provider has, or convert with posexport convert --target cuda.",
    check=_check,
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
