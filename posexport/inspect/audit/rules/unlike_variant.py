"""PX707: a file of another precision that disagrees with its float32 sibling more than its precision explains."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from posexport.inspect.audit.calls.calls import Calls, is_real
from posexport.inspect.audit.calls.inputs import Call
from posexport.inspect.audit.calls.process import CallError
from posexport.inspect.audit.reading.folder import input_names
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: precision -> the part of an output, by its Euclidean norm, that rounding may change in a trained model
_LIMITS = {"4 bits": 0.7, "8 bits": 0.5, "bfloat16": 0.2, "float16": 0.05, "float32": 1e-3}
#: what names of files add for a precision
_PRECISION = re.compile(
    r"[_.-]((fp|float|bf|bfloat|int|uint|q|w)\d+\w*|half|quant\w*|qdq|dynamic|static|bnb\d*|\d+-?bits?|[_.-])+",
    re.IGNORECASE,
)
_FOUR_BITS = frozenset(("MatMulNBits", "MatMulBnb4", "GatherBlockQuantized"))
_EIGHT_BITS = frozenset(
    (
        *("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "ConvInteger"),
        *("QLinearMatMul", "QLinearConv", "DequantizeLinear", "QAttention", "DynamicQuantizeLSTM"),
    )
)


def _check(subject: Subject) -> Iterator[Place]:
    calls, sibling = subject.calls, _sibling(subject.path)
    if calls is None or calls.another is None or not calls.working or sibling is None:
        return
    fed = set(input_names(sibling))
    if not {port.name for port in calls.inputs.ports} <= fed:
        return
    precision = _precision(subject)
    run = calls.another(sibling, subject.provider)
    worst = max(_differences(calls, run), default=None)
    if worst is not None and worst[0] > _LIMITS[precision]:
        off, name, call = worst
        yield Place(
            f"{name!r} differs from {sibling.name!r} by {off:.0%} at {call}; {precision} explain up to "
            f"{_LIMITS[precision]:.1%}",
            [name],
        )


def _differences(calls: Calls, run: object) -> Iterator[tuple[float, str, str]]:
    """The relative differences of all outputs, with the output and the call."""
    assert callable(run)
    for length in calls.working:
        call = Call(tuple((row, length) for row in (1, 2, 3)))
        answer = calls(call)
        try:
            right = run(calls.inputs.feeds(call))
        except CallError:
            continue  # of the sibling: the audit of that file says so
        for name, y in answer.outputs.items():
            expected = right.get(name)
            if expected is None or not is_real(y) or not is_real(expected) or y.shape != expected.shape:
                continue
            y64, expected = y.astype(np.float64), expected.astype(np.float64)
            counts = np.isfinite(y64) & np.isfinite(expected)
            norm = float(np.linalg.norm(expected[counts]))
            if norm:
                yield float(np.linalg.norm((y64 - expected)[counts])) / norm, name, str(call)


def _sibling(path: Path) -> Path | None:
    """The file of the same name without its last parts: model.onnx of model_q4f16.onnx."""
    shorter = [
        other
        for other in path.parent.glob("*.onnx")
        if other != path and path.stem.startswith(other.stem) and _PRECISION.fullmatch(path.stem[len(other.stem) :])
    ]
    return max(shorter, key=lambda other: len(other.stem), default=None)


def _precision(subject: Subject) -> str:
    """The coarsest precision of a graph."""
    operators = {node.op_type for node in subject.nodes}
    types = {value.dtype.name for value in subject.graph.initializers.values() if value.dtype is not None}
    if operators & _FOUR_BITS or types & {"INT4", "UINT4"}:
        return "4 bits"
    if operators & _EIGHT_BITS:
        return "8 bits"
    return "bfloat16" if "BFLOAT16" in types else "float16" if "FLOAT16" in types else "float32"


RULE = Rule(
    code="PX707",
    name="unlike-variant",
    severity="error",
    finds="a variant of a folder (model_fp16.onnx) disagrees with its float32 sibling beyond its precision",
    why="The quantized or half-precision file is another model, or overflows: users choose it for its size.",
    remedy="Make the variant again from the float32 file, or use that one; posexport convert --precision proves each.",
    reads="calls",
    check=_check,
)
