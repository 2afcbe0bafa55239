"""Activations as uint8 about a zero point, mostly 128, with a scale for each row, mostly its largest magnitude / 127.

uint8, as ONNX Runtime's products of int8 with int8 take twice the time of float32. The zero point is one for all rows:
MatMulInteger with a zero point for each row fails when it runs. A row of zeros has the scale of a tiny number instead
of 0 / 0, and is the zero point exactly, which represents 0.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from posexport.base.targets.target import BLOCKED_OPSET, Target
from posexport.graph.builder import Builder
from posexport.graph.precision.calibration import Smoother
from posexport.graph.precision.derived import DerivedTensors
from posexport.graph.precision.rows.activation_scales import PLAIN, RowScale, StaticScale, highest_step, lowest_step

FLOAT, UINT8 = ir.DataType.FLOAT, ir.DataType.UINT8
#: rows up to this magnitude count as zeros; a 127th of it is still a normal float32
TINY = 1e-30
#: nodes that bring a value to uint8 by rows
ROW_NODES = 7
#: above twice the scale of any row, 3.4e38 / 127
_HUGE = 1e38


def zero_point(zero: int) -> str:
    """What the constant is called."""
    return "zero_point" if zero == PLAIN.zero else f"zero_point_{zero}"


def step(steps: int) -> str:
    """What 1 / ``steps`` is called."""
    return f"step_of_{steps}"


def down(zero: int) -> str:
    """What the factor is called by which a row's lowest value asks for a scale."""
    return f"down_{zero}"


@dataclass(frozen=True)
class Rows:
    """``quantized``: uint8 [..., K]; ``scale``: float32 [..., 1]; ``zero``: a uint8 scalar."""

    quantized: ir.Value
    scale: ir.Value
    zero: ir.Value


@dataclass(frozen=True)
class Static:
    """``quantized``: uint8 [..., K] of x / smoothing; ``scale``: a float32 scalar; ``zero``: a uint8 one."""

    quantized: ir.Value
    scale: ir.Value
    zero: ir.Value


class Activations:
    """The quantised activations of one model; an input of several projections is quantised once."""

    def __init__(
        self, tensors: DerivedTensors, target: Target, smoother: Smoother, emptied: Container[ir.Value]
    ) -> None:
        """``emptied``: values that may have no rows."""
        self._tensors = tensors
        self._target = target
        self._smoother = smoother
        self._emptied = emptied
        self._known: dict[ir.Value, Rows] = {}
        self._static: dict[ir.Value, Static] = {}

    def static(self, x: ir.Value, scale: StaticScale) -> Static:
        """``x`` [..., K] with a static scale."""
        if x not in self._static:
            x_smooth = x if scale.smoothing is None else self._smoother.divided(x, scale.smoothing)
            graph, g = self._after(x_smooth, (), "static")
            number, count = self._tensors.number, len(self._static)
            step, zero = number(graph, f"step_{count}", scale.scale), number(graph, f"zero_point_{count}", scale.zero)
            quantized = g.QuantizeLinear(x_smooth, step, zero, name="uint8", shape=x.shape)
            self._static[x] = Static(quantized, step, zero)
        return self._static[x]

    def rows(self, x: ir.Value, reader: ir.Node, channels: int, scale: RowScale) -> Rows:
        """``x`` [..., K] with a scale for each row; ``reader``: its first reader; ``channels``: K."""
        if x not in self._known:
            x_smooth = x if scale.smoothing is None else self._smoother.divided(x, scale.smoothing)
            self._known[x] = self._quantize(x_smooth, reader, channels, scale.zero, emptied=x in self._emptied)
        return self._known[x]

    def _after(self, x: ir.Value, like: Sequence[ir.Node], suffix: str) -> tuple[ir.Graph, Builder]:
        """The graph that ``x`` is computed in, and what writes nodes there."""
        producer = x.producer()
        graph = x.graph if producer is None else producer.graph
        assert isinstance(graph, ir.Graph)
        return graph, Builder.behind(graph, x, like=like, name=f"{x.name}_{suffix}", opset=self._tensors.opset)

    def _quantize(self, x: ir.Value, reader: ir.Node, channels: int, zero: int, *, emptied: bool) -> Rows:
        graph, g = self._after(x, (reader,), "rows")
        number = self._tensors.number
        point = number(graph, zero_point(zero), np.uint8(zero))
        steps = highest_step(zero)
        unit_step = number(graph, step(steps), np.float32(1 / steps))
        top = self._highest(x, graph, g, zero)
        if emptied:  # ONNX Runtime does not reduce the axis where there is no row
            top = g.slice(top, [0], [1], -1, name="one")
        scale = g.Mul(top, unit_step, name="scale")
        if self._target.provider is None or self._target.opset < BLOCKED_OPSET:
            # with a scalar scale, which every runtime knows: the row is brought to [-1, 1] first
            unit = g.Div(x, top, name="unit", shape=x.shape)
            quantized = g.QuantizeLinear(unit, unit_step, point, name="uint8", shape=x.shape)
        else:
            # one block for every row: half the passes over x. A zero point for every block, by one operator: a value
            # # far below half a step is the zero point itself
            zeros = g.QuantizeLinear(scale, number(graph, "huge", np.float32(_HUGE)), point, name="zeros")
            blocks = {"axis": -1, "block_size": channels}
            quantized = g.QuantizeLinear(x, scale, zeros, name="uint8", shape=x.shape, **blocks)
        return Rows(quantized, scale, point)

    def _highest(self, x: ir.Value, graph: ir.Graph, g: Builder, zero: int) -> ir.Value:
        """The value of each row that is brought to 255: its highest, or what its lowest asks for."""
        number = self._tensors.number
        last, tiny = number(graph, "last_axis", np.array([-1])), number(graph, "tiny", np.float32(TINY))
        lowest, ratio = g.ReduceMin(x, last, name="lowest"), highest_step(zero) / lowest_step(zero)
        if ratio == 1:
            low = g.Neg(lowest, name="low")
        else:
            low = g.Mul(lowest, number(graph, down(zero), np.float32(-ratio)), name="low")
        return g.Max(g.ReduceMax(x, last, name="highest"), low, tiny, name="largest")
