"""The calls of one audited graph, each made once, and whether two calls' outputs are the same.

Two results are the same when they differ by less than rounding does. How much that is, the graph shows itself: with and
without ONNX Runtime's optimisations it is the same function in another order of rounding.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.inspect.audit.audited_graph import AuditedGraph
from posexport.inspect.audit.calls.frames import Arrays
from posexport.inspect.audit.calls.inputs import LONGEST, Call, Inputs
from posexport.inspect.audit.calls.process import CallError
from posexport.run.wrapped_session import refusal

#: lengths of rows, odd so that no size of a model is one of them by chance
LENGTHS = (1, 5, 11, 23)
#: what differs less, relative to the largest value of an output, is rounding; by the narrowest type of the graph
_ROUNDING = {"FLOAT16": 2e-2, "BFLOAT16": 1e-1}
_FLOAT32 = 1e-4
#: operators with one scale for all rows and places of a call
_DYNAMIC = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul")
ONE_SCALE = "DynamicQuantizeLinear takes one scale for all rows and places of a call"
#: times the rounding that the graph shows
_FACTOR = 8.0
_QUANTIZED = frozenset(
    (
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "QLinearMatMul",
        "QuantizeLinear",
        "MatMulNBits",
    )
)

#: the outputs for arrays: what `posexport.inspect.audit.calls.process.Child` does
Run = Callable[..., Arrays]
#: opens a file on a provider
Another = Callable[[Path, str], Run]


@dataclass(frozen=True)
class Answer:
    """The result of a call.

    Attributes:
        outputs: by name; empty if it failed.
        failure: ONNX Runtime's message.
        refusal: the sentence of a guard that refuses the call on purpose.
    """

    outputs: Arrays
    failure: str = ""
    refusal: str = ""

    def __bool__(self) -> bool:
        return not (self.failure or self.refusal)


class Calls:
    """Calls of one graph.

    Attributes:
        subject: the graph.
        inputs: what it is fed with.
        direct: runs the graph for arrays, and raises.
        another: runs another file, or on another provider.
        providers: those to compare with the subject's.
        least: what may differ, relative to the largest value of an output.
        shares_scales: activations are quantized with one scale for a whole call: all its results depend on each other,
            by design.
    """

    def __init__(
        self,
        subject: AuditedGraph,
        inputs: Inputs,
        run: Run,
        another: Another | None = None,
        providers: Sequence[str] = (),
    ) -> None:
        self.subject, self.inputs, self.direct = subject, inputs, run
        self.another, self.providers = another, providers
        self._answers: dict[tuple[Call, str], Answer] = {}
        types = {value.dtype.name for node in subject.nodes for value in node.outputs if value.dtype is not None}
        types |= {value.dtype.name for value in subject.graph.initializers.values() if value.dtype is not None}
        self.shares_scales = any(node.op_type in _DYNAMIC for node in subject.nodes)
        self.least = max([_ROUNDING[name] for name in types & _ROUNDING.keys()], default=_FLOAT32)

    def __call__(self, call: Call, *, level: str = "all") -> Answer:
        """The outputs of a call with an empty cache."""
        key = (call, level)
        if key not in self._answers:
            self._answers[key] = self.run(self.inputs.feeds(call), level=level)
        return self._answers[key]

    def run(self, feeds: Mapping[str, NDArray[Any]], *, level: str = "all", model: bytes = b"") -> Answer:
        """Runs the graph for arrays; returns the outputs, or why there are none."""
        try:
            return Answer(self.direct(feeds, level=level, model=model))
        except CallError as err:
            reason = refusal(err)
            return Answer({}, refusal=reason) if reason else Answer({}, failure=str(err))

    def forget(self) -> None:
        """Drop all results: the inputs have changed."""
        self._answers.clear()

    @property
    def lengths(self) -> Sequence[int]:
        """Lengths to try: `LENGTHS` and lengths that constants of the graph fit; or the fixed one."""
        fixed = {
            port.axes[-1]
            for port in self.inputs.ports
            if port.kind in ("ids", "mask", "positions") and len(port.axes) == 2 and isinstance(port.axes[1], int)
        }
        if fixed:
            return [int(next(iter(fixed)))]
        if not any(self.inputs.has(axis) for axis in ("tokens", "total")):
            return LENGTHS[1:2]
        numbers = [conflict.number for conflict in self.subject.conflicts]
        numbers += [reshape.number for reshape in self.subject.fixed_reshapes]
        return sorted({*LENGTHS, *[number for number in dict.fromkeys(numbers) if number < LONGEST][:2]})

    @property
    def working(self) -> list[int]:
        return [length for length in self.lengths if self(Call(((1, length),)))]

    def gap(self, name: str, y: NDArray[Any], right: NDArray[Any], calls: Sequence[Call]) -> float | None:
        """By how much two results differ, relative to the largest value; None: they are the same.

        ``calls``: those that computed them; their rounding is measured where the difference could be rounding.
        """
        gap, scale = distance(y, right)
        if gap <= self.least * scale:
            return None
        noise = max((self.noise(name, call) for call in calls), default=0.0)
        return None if gap <= _FACTOR * noise else (gap / scale if scale else float("inf"))

    def noise(self, name: str, call: Call) -> float:
        """By how much an output differs without optimisations; 0 where that does not run."""
        optimised, unoptimised = self(call), self(call, level="disable")
        if not (optimised and unoptimised) or name not in unoptimised.outputs:
            return 0.0
        return distance(optimised.outputs[name], unoptimised.outputs[name])[0]


def distance(y: NDArray[Any], right: NDArray[Any]) -> tuple[float, float]:
    """The largest difference and the largest value; equal infinities, and NaN in both, differ by 0."""
    y, right = np.asarray(y, np.float64), np.asarray(right, np.float64)
    same = (y == right) | (np.isnan(y) & np.isnan(right))
    finite = np.abs(right[np.isfinite(right)])
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(y - right))
    return float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0)), float(finite.max(initial=0.0))


def is_real(output: NDArray[Any]) -> bool:
    """Whether differences of an output mean something: it has floats, and some."""
    return output.dtype.kind == "f" and output.size > 0


def real_places(y: NDArray[Any], call: Call, tokens: int) -> NDArray[Any]:
    """The entries of real tokens on every axis with a place for each token."""
    if call.total == tokens:
        return y
    start = call.total - tokens if call.side == "left" else 0
    for axis, size in enumerate(y.shape):
        if axis and size == call.total:
            y = np.take(y, range(start, start + tokens), axis=axis)
    return y


def failing(message: str) -> list[str]:
    """The node that ONNX Runtime names in a failure."""
    match = re.search(r"while running (\w+) node\. Name:'([^']*)'", message)
    return [match[2] or match[1]] if match else []
