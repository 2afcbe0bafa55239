"""RoPE of a graph (Su et al., RoFormer, 2021, section 3.4): its frequencies, from angles or from tables of sines."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.graph.dataflow import sources
from posexport.graph.queries import SHAPES
from posexport.inspect.audit.analyses.weights import stored

#: elements of a constant that may be frequencies, and relative tolerance of a geometric series in half precision
_MOST, _NEAR = 1024, 2e-3
#: inputs of fused operators that may be tables of sines (two domains have a RotaryEmbedding)
_CACHES = {"RotaryEmbedding": (2, 3), "GroupQueryAttention": (8,)}


@dataclass(frozen=True)
class Rotation:
    """A set of frequencies.

    Attributes:
        node: the first Cos, Gather or fused operator that reads them.
        frequencies: in radians per token, [D / 2].
        rows: of a table of sines, how many positions it has; None: angles are computed.
    """

    node: ir.Node
    frequencies: NDArray[np.float64]
    rows: int | None = None

    @property
    def base(self) -> float | None:
        """theta of ``theta^(-2i / D)``; None if the frequencies are scaled in another way."""
        logs = np.log(self.frequencies)
        slope = -logs[-1] / (len(logs) - 1)
        if abs(logs[0]) > _NEAR or not np.allclose(logs, -slope * np.arange(len(logs)), rtol=_NEAR, atol=_NEAR):
            return None
        return float(np.exp(slope * len(logs)))

    def __str__(self) -> str:
        first, last = self.frequencies[[0, -1]]
        kind = f"base {_rounded(self.base):g}" if self.base is not None else f"scaled, from {first:.4g} to {last:.4g}"
        rows = "" if self.rows is None else f", a table of {self.rows} positions"
        return f"rotary (RoPE), {len(self.frequencies)} frequencies, {kind}{rows}"


def rotations(nodes: list[ir.Node]) -> list[Rotation]:
    """Each set of frequencies once, in the order of ``nodes``."""
    found: list[Rotation] = []
    for rotation in _rotations(nodes):
        same = (
            known.rows == rotation.rows
            and known.frequencies.shape == rotation.frequencies.shape
            and np.allclose(known.frequencies, rotation.frequencies, rtol=_NEAR)
            for known in found
        )
        if not any(same):
            found.append(rotation)
    return found


def _rotations(nodes: list[ir.Node]) -> Iterator[Rotation]:
    for node in nodes:
        if node.op_type == "Cos" and not node.domain:
            for value in sources(node.inputs[0], breaks=SHAPES) if node.inputs[0] is not None else ():
                if (frequencies := _frequencies(value)) is not None:
                    yield Rotation(node, frequencies)
        places = _CACHES.get(node.op_type, (0,) if node.op_type == "Gather" and not node.domain else ())
        for place in places:
            table = stored(node.inputs[place]) if place < len(node.inputs) else None
            if table is not None and (rotation := _of_table(node, table)) is not None:
                yield rotation


def _frequencies(value: ir.Value) -> NDArray[np.float64] | None:
    """The elements of a constant that falls from 1; None if it is another one."""
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or not 1 < tensor.size <= _MOST or not tensor.dtype.is_floating_point():
        return None
    return _falling(np.asarray(tensor.numpy(), np.float64).reshape(-1))


def _falling(array: NDArray[Any]) -> NDArray[np.float64] | None:
    half = array[: len(array) // 2]
    if len(array) % 2 == 0 and np.array_equal(half, array[len(half) :]):
        array = half  # cosines of both halves of a head
    elif np.array_equal(array[::2], array[1::2]):
        array = array[::2]  # interleaved
    if len(array) < 2 or not (array > 0).all() or array[0] > 1 + _NEAR or (np.diff(array) >= 0).any():
        return None
    return array


def _of_table(node: ir.Node, table: ir.Value) -> Rotation | None:
    """The frequencies of a table of sines [positions, D / 2 or D]: row 0 is 0, row 1 has their sines.

    Cosines of small frequencies are 1 in float32, and say nothing.
    """
    tensor = ir.convenience.get_const_tensor(table)
    if tensor is None or len(tensor.shape) != 2 or not tensor.dtype.is_floating_point():
        return None
    rows = int(tensor.shape[0]) if isinstance(tensor.shape[0], int) else 0
    if rows < 2 or tensor.size // rows > _MOST:
        return None
    first, second = np.asarray(tensor.numpy()[:2], np.float64)
    if first.any() or (np.abs(second) > np.sin(1.0) + _NEAR).any():
        return None
    frequencies = _falling(np.arcsin(second))
    return None if frequencies is None else Rotation(node, frequencies, rows)


def _rounded(base: float) -> float:
    """A base as a configuration has it, to three digits."""
    return float(f"{base:.3g}")
