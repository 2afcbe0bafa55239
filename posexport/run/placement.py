"""The execution provider of every node, and the nodes on an unexpected provider.

Read from ONNX Runtime's profile of one run, after all graph optimisations: a plan could differ from what ran.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.base.targets.providers import DEFAULT_PROVIDER
from posexport.run.ort_values import run
from posexport.run.providers import make_session

_KERNEL = "_kernel_time"


class Args(msgspec.Struct):
    """``output_type_shape``: element type to shape, one of each output."""

    provider: str = ""
    op_name: str = ""
    output_type_shape: list[dict[str, list[int]]] = []


class Event(msgspec.Struct):
    """One entry of the profile; ``ts`` and ``dur`` in microseconds."""

    cat: str = ""
    name: str = ""
    ts: float = 0
    dur: float = 0
    args: Args = msgspec.field(default_factory=Args)

    @property
    def node(self) -> str:
        return self.name.removesuffix(_KERNEL)


def read_profile(path: Path) -> list[Event]:
    return msgspec.json.decode(path.read_bytes(), type=list[Event])


def kernels(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.cat == "Node" and event.args.provider and event.name.endswith(_KERNEL)]


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
#: largest number of elements of a tensor in shape arithmetic: half a megabyte of int64
LARGEST_LIST = 65536
_INTEGERS = {"int64", "int32", "uint64", "uint32", "bool"}


@dataclass(frozen=True)
class Placed:
    """A node that ran; ``outputs`` are (element type, shape) from the profile."""

    node: str
    op_type: str
    provider: str
    outputs: tuple[tuple[str, tuple[int, ...]], ...]

    def __str__(self) -> str:
        outputs = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in self.outputs)
        return f"{self.node} ({self.op_type}, {self.provider}, gives {outputs or 'nothing'})"


def placement(
    model: Path | bytes,
    feeds: Mapping[str, NDArray[Any]],
    provider: str = DEFAULT_PROVIDER,
    *,
    threads: int = 0,
    level: str = "all",
) -> list[Placed]:
    """Run ``model`` once on ``feeds`` and return its nodes in order, with copies between devices.

    Raises:
        PosexportError: see `make_session`.
        RuntimeError: the profile has no node.
    """
    with tempfile.TemporaryDirectory(prefix="posexport-") as folder:
        session = make_session(model, provider=provider, threads=threads, level=level, profile=Path(folder) / "run")
        try:
            run(
                session,
                [value.name for value in session.get_outputs()],
                {name: np.asarray(value) for name, value in feeds.items()},
            )
        finally:
            profile = Path(session.end_profiling())
        events = read_profile(profile)
    placed = [_placed(event) for event in kernels(events)]
    if not placed:
        raise RuntimeError("ONNX Runtime's profile names no node: its format is not the one known here")
    return list(dict.fromkeys(placed))


def _placed(event: Event) -> Placed:
    outputs = tuple((dtype, tuple(shape)) for types in event.args.output_type_shape for dtype, shape in types.items())
    return Placed(event.node, event.args.op_name, event.args.provider, outputs)


def strays(placed: Sequence[Placed], provider: str, *, integers_on_host: bool = False) -> list[Placed]:
    """The nodes that ran on another provider than ``provider`` (ONNX Runtime's name) and are not shape arithmetic.

    Copies between devices (``MemcpyToHost``, ``MemcpyFromHost``) count too, except copies of shape arithmetic.

    A node is shape arithmetic if its operator is in `SHAPE_ARITHMETIC` and each output is an integer or boolean tensor
    of rank 0 or 1 with at most `LARGEST_LIST` elements, or a floating-point scalar. ONNX Runtime places these nodes on
    the host on purpose: a kernel launch for a few elements that the host needs anyway is slower. Token ids, masks and
    activations have a batch axis and a sequence axis, so they are never shape arithmetic.

    Args:
        placed: the nodes (`placement`).
        provider: the expected provider.
        integers_on_host: for a provider without integer kernels: do not return nodes with only integer or boolean
            outputs of any size, copies and casts.
    """

    def on_host(node: Placed) -> bool:
        moved = node.op_type == "Cast" or node.op_type.startswith("Memcpy")
        return moved or all(dtype in _INTEGERS for dtype, _ in node.outputs)

    nodes = [node for node in placed if _foreign(node, provider) and not _shape_arithmetic(node)]
    return [node for node in nodes if not (integers_on_host and on_host(node))]


def _foreign(node: Placed, provider: str) -> bool:
    return node.provider != provider or node.op_type.startswith("Memcpy")


def _shape_arithmetic(node: Placed) -> bool:
    if node.op_type not in SHAPE_ARITHMETIC and not node.op_type.startswith("Memcpy"):
        return False
    return bool(node.outputs) and all(
        len(shape) <= 1 and prod(shape) <= (LARGEST_LIST if dtype in _INTEGERS else 1) for dtype, shape in node.outputs
    )
