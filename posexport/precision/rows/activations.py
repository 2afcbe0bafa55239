"""Activations as uint8 about 128, with a scale for each row: its largest magnitude / 127.

uint8, as ONNX Runtime's products of int8 with int8 take twice the time of float32. The zero point is 128 everywhere:
MatMulInteger with a zero point for each row fails when it runs. A row of zeros has the scale of a tiny number instead
of 0 / 0, and is 128 exactly, which stands for 0.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from posexport.precision.derived import DerivedTensors
from posexport.precision.rows.insert import Insert
from posexport.precision.static.scales import StaticScale
from posexport.targets.target import BLOCKED_OPSET, Target

FLOAT, UINT8 = ir.DataType.FLOAT, ir.DataType.UINT8
#: the largest magnitude of a row that is taken for zeros; its 1 / 127 is a normal float32 still
TINY = 1e-30
#: above twice the scale of any row, 3.4e38 / 127
_HUGE = 1e38


@dataclass(frozen=True)
class Rows:
    """``quantized``: uint8 [..., K]; ``scale``: float32 [..., 1]."""

    quantized: ir.Value
    scale: ir.Value


@dataclass(frozen=True)
class Static:
    """``quantized``: uint8 [..., K] of x / smoothing; ``scale``: a float32 scalar; ``zero``: a uint8 one."""

    quantized: ir.Value
    scale: ir.Value
    zero: ir.Value


class Activations:
    """Of one model; what several projections read is quantised once, where it is computed."""

    def __init__(self, tensors: DerivedTensors, target: Target) -> None:
        self._tensors = tensors
        self._target = target
        self._known: dict[ir.Value, Rows] = {}
        self._static: dict[ir.Value, Static] = {}

    def static(self, x: ir.Value, scale: StaticScale) -> Static:
        """``x`` [..., K] by a scale that is known before."""
        if x not in self._static:
            producer = x.producer()
            graph = x.graph if producer is None else producer.graph
            assert isinstance(graph, ir.Graph)
            number, count = self._tensors.number, len(self._static)
            add = Insert(graph, (), f"{x.name}_static", after=producer)
            step, zero = number(graph, f"step_{count}", scale.scale), number(graph, f"zero_point_{count}", scale.zero)
            smooth = x
            if scale.smoothing is not None:
                factor = number(graph, f"smoothing_{count}", 1 / scale.smoothing)
                smooth = add("Mul", [x, factor], "smooth", FLOAT, shape=x.shape)
            quantized = add("QuantizeLinear", [smooth, step, zero], "uint8", UINT8, shape=x.shape)
            self._static[x] = Static(quantized, step, zero)
        return self._static[x]

    def rows(self, x: ir.Value, reader: ir.Node, channels: int) -> Rows:
        """``x`` [..., K] by rows; ``reader``: the first node that reads it so; ``channels``: K."""
        if x not in self._known:
            self._known[x] = self._quantize(x, reader, channels)
        return self._known[x]

    def _quantize(self, x: ir.Value, reader: ir.Node, channels: int) -> Rows:
        producer = x.producer()
        graph = x.graph if producer is None else producer.graph
        assert isinstance(graph, ir.Graph)
        add = Insert(graph, (reader,), f"{x.name}_rows", after=producer)
        if self._target.provider is None or self._target.opset < BLOCKED_OPSET:
            return self._by_division(x, graph, add)
        return self._in_blocks(x, graph, add, channels)

    def _by_division(self, x: ir.Value, graph: ir.Graph, add: Insert) -> Rows:
        """With a scalar scale alone, which every runtime knows: the row is brought to [-1, 1] first."""
        last = self._tensors.number(graph, "last_axis", np.array([-1]))
        top = add("ReduceMax", [add("Abs", [x], "magnitude", FLOAT, shape=x.shape), last], "largest", FLOAT)
        scale = add("Max", [top, self._tensors.number(graph, "tiny", np.float32(TINY))], "scale", FLOAT)
        unit = add("Div", [x, scale], "unit", FLOAT, shape=x.shape)
        step = self._tensors.number(graph, "step_of_127", np.float32(1 / 127))
        zero = self._tensors.number(graph, "zero_point", np.uint8(128))
        quantized = add("QuantizeLinear", [unit, step, zero], "uint8", UINT8, shape=x.shape)
        return Rows(quantized, add("Mul", [scale, step], "step", FLOAT))

    def _in_blocks(self, x: ir.Value, graph: ir.Graph, add: Insert, channels: int) -> Rows:
        """QuantizeLinear with one block for every row: half the passes over ``x``."""
        number = self._tensors.number
        last, tiny = number(graph, "last_axis", np.array([-1])), number(graph, "tiny", np.float32(TINY))
        low = add("Neg", [add("ReduceMin", [x, last], "lowest", FLOAT)], "negated", FLOAT)
        top = add("Max", [add("ReduceMax", [x, last], "highest", FLOAT), low, tiny], "largest", FLOAT)
        scale = add("Mul", [top, number(graph, "step_of_127", np.float32(1 / 127))], "scale", FLOAT)
        zero = number(graph, "zero_point", np.uint8(128))
        # a zero point for every block, by one operator: what is far below half a step is 128
        zeros = add("QuantizeLinear", [scale, number(graph, "huge", np.float32(_HUGE)), zero], "zero_points", UINT8)
        attributes = {"axis": -1, "block_size": channels}
        quantized = add("QuantizeLinear", [x, scale, zeros], "uint8", UINT8, attributes, shape=x.shape)
        return Rows(quantized, scale)
