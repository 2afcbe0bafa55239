"""Where every node of a model ran, and which of them ran where they should not.

Read from ONNX Runtime's own profile of one run, after all its graph optimisations: what was planned does not count.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.runtime.profile import Event, kernels, read_profile
from posexport.runtime.providers import make_session
from posexport.targets.providers import DEFAULT_PROVIDER

#: operators that compute shapes, lengths and positions from shapes
SHAPE_ARITHMETIC = frozenset(
    [
        *("Shape", "Size", "Constant", "ConstantOfShape", "Range", "Identity", "Cast", "Where", "CumSum"),
        *("Gather", "Slice", "Split", "Concat", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Expand", "Tile"),
        *("Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Sign", "Min", "Max", "Clip", "Floor", "Ceil", "Round"),
        *("Sqrt", "Log", "Exp", "Pow", "ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin", "And", "Or", "Not"),
        *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    ]
)
#: largest list of positions that still counts as shape arithmetic, in elements: half a megabyte of int64
LARGEST_LIST = 65536
_COUNTED = {"int64", "int32", "uint64", "uint32", "bool"}


@dataclass(frozen=True)
class Placed:
    """One node that ran: ``outputs`` are (element type, shape) as the profile gives them."""

    node: str
    op_type: str
    provider: str
    outputs: tuple[tuple[str, tuple[int, ...]], ...]

    def __str__(self) -> str:
        made = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in self.outputs)
        return f"{self.node} ({self.op_type}, {self.provider}, gives {made or 'nothing'})"


def placement(
    model: Path | bytes,
    feeds: Mapping[str, NDArray[Any]],
    provider: str = DEFAULT_PROVIDER,
    *,
    threads: int = 0,
    level: str = "all",
) -> list[Placed]:
    """Run ``model`` once on ``feeds`` and say where each node ran, in order, copies between devices included.

    Raises what `make_session` raises; a profile without a node is a RuntimeError, since nothing could be said.
    """
    with tempfile.TemporaryDirectory(prefix="posexport-") as folder:
        session = make_session(model, provider=provider, threads=threads, level=level, profile=Path(folder) / "run")
        try:
            session.run(None, {name: np.asarray(value) for name, value in feeds.items()})
        finally:
            profile = Path(session.end_profiling())
        events = read_profile(profile)
    placed = [_placed(event) for event in kernels(events)]
    if not placed:
        raise RuntimeError("ONNX Runtime's profile names no node: its format is not the one known here")
    return list(dict.fromkeys(placed))


def _placed(event: Event) -> Placed:
    outputs = tuple((dtype, tuple(shape)) for one in event.args.output_type_shape for dtype, shape in one.items())
    return Placed(event.node, event.args.op_name, event.args.provider, outputs)


def strays(placed: Sequence[Placed], wanted: str, *, integers_on_host: bool = False) -> list[Placed]:
    """The nodes that ran on another provider than ``wanted`` (ONNX Runtime's name) and are not shape arithmetic.

    A copy between devices (``MemcpyToHost``, ``MemcpyFromHost``) is one too, unless what it moves is shape arithmetic.
    A node is shape arithmetic if its operator is one of `SHAPE_ARITHMETIC` and everything it gives is either a list (or
    one) of integers or truth values, at most `LARGEST_LIST` of them, or one real number. ONNX Runtime computes such
    nodes on the host on purpose: a kernel launch for a few numbers that the host needs anyway is slower. What has a
    batch axis beside its sequence axis has two axes and is no list, so token ids, masks and activations always count.
    ``integers_on_host``: of a provider without kernels for integers; what gives integers or truth values alone is none,
    of any size, nor are copies and casts, which such nodes need.
    """

    def on_host(one: Placed) -> bool:
        moved = one.op_type == "Cast" or one.op_type.startswith("Memcpy")
        return moved or all(dtype in _COUNTED for dtype, _ in one.outputs)

    found = [one for one in placed if _foreign(one, wanted) and not _shape_arithmetic(one)]
    return [one for one in found if not (integers_on_host and on_host(one))]


def _foreign(one: Placed, wanted: str) -> bool:
    return one.provider != wanted or one.op_type.startswith("Memcpy")


def _shape_arithmetic(one: Placed) -> bool:
    if one.op_type not in SHAPE_ARITHMETIC and not one.op_type.startswith("Memcpy"):
        return False
    return bool(one.outputs) and all(
        len(shape) <= 1 and prod(shape) <= (LARGEST_LIST if dtype in _COUNTED else 1) for dtype, shape in one.outputs
    )
