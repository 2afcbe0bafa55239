"""Rewrites a graph, and copies of model files: half precision as float32 with rounded outputs of operators.

Rounding is a Cast to the half type and one back: to the nearest, ties to even, with subnormals, and to infinity where
float16 overflows. ONNX Runtime keeps both at every level of optimisation, and has kernels of both types on the CPU.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, NameFixPass

from posexport.base.spec import PartSpec
from posexport.base.targets.dtypes import DType
from posexport.errors import PosexportError
from posexport.graph import edits
from posexport.graph.queries import bodies
from posexport.graph.types import infer_types

#: what an emulated proof cannot show, as reports say it
LIMITS = (
    "emulated on the CPU: every operator's output is rounded; what a kernel rounds inside, and the order in which it "
    "sums, only a run on the provider shows"
)
#: operators that only move elements: rounded values stay rounded
_MOVES = {
    *("Abs", "Clip", "Compress", "Concat", "Constant", "ConstantOfShape", "DepthToSpace"),
    *("Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity"),
    *("If", "Loop", "Max", "MaxPool", "Min", "Neg", "OneHot"),
    *("Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape", "Scan", "Sign"),
    *("Slice", "SpaceToDepth", "Split", "Squeeze", "TensorScatter", "Tile", "TopK"),
    *("Transpose", "Trilu", "Unsqueeze", "Where"),
}
#: these too, unless they add or multiply
_MOVES_UNLESS_REDUCING = frozenset({"ScatterElements", "ScatterND"})
#: attributes that hold a number of an element type
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision")


def emulate(model: ir.Model, half: DType, *, everywhere: bool = False) -> int:
    """Rewrites ``model`` in place; returns how many values are rounded.

    Values of type ``half`` become float32 and are rounded; float32 values stay exact. Functions are inlined.
    With ``everywhere`` the graph is float32, and all of its values are rounded, as in a conversion of everything
    to ``half``, with constants beyond its range clipped as converters do.

    Raises:
        PosexportError: the graph has nothing to round, or an operator of unknown output type.
    """
    InlinePass()(model)
    NameFixPass()(model)  # of two calls in branches around each other, InlinePass may give values one name
    rounding = _Rounding(model, ir.DataType[half.onnx], ir.DataType.FLOAT if everywhere else ir.DataType[half.onnx])
    unknown = infer_types(model.graph, model.opset_imports)
    # without an input of the half type the output's type does not matter
    for value in unknown:
        node = value.producer()
        if node is not None and any(rounding.concerns(operand) for operand in node.inputs):
            raise PosexportError(
                f"{node.op_type} of domain {node.domain!r} (node {node.name!r}) has no schema that tells the type of "
                f"its output {value.name!r}; {half.name} cannot be emulated for it"
            )
    rounding.apply(model.graph)
    if not rounding.rounded:
        raise PosexportError(
            f"the graph has no values of {'float32' if everywhere else half.name}: there is nothing to round"
        )
    return rounding.rounded


@dataclass
class _Rounding:
    """The rewriting of one model: values of type ``source`` are rounded to ``half``."""

    model: ir.Model
    half: ir.DataType
    source: ir.DataType
    rounded: int = 0
    #: casts that were put in

    def concerns(self, value: ir.Value | None) -> bool:
        return value is not None and value.dtype == self.source

    def apply(self, graph: ir.Graph) -> None:
        """``graph`` and its subgraphs, from the inside out."""
        nodes = list(graph)
        main = graph is self.model.graph
        for node in nodes:
            for body in bodies(node).values():
                self.apply(body)
        inputs = [value for value in graph.inputs if main and self.concerns(value)]
        computed = [(node, value) for node in nodes for value in node.outputs if self._computes(node, value)]
        values = {*graph.inputs, *(value for node in nodes for value in node.outputs)}
        self._weights(graph)
        for value in [value for value in values if self.concerns(value)]:
            value.dtype = ir.DataType.FLOAT
        for node in nodes:
            self._attributes(node)
        for node, value in computed:
            if value.uses() or value.is_graph_output():
                self._round(graph, value, node)
        for value in inputs:
            if value.uses():
                self._round(graph, value, None)

    def _weights(self, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            if self.concerns(value) and value.const_value is not None:
                value.const_value = self._rounded(value.const_value)
                value.dtype = ir.DataType.FLOAT
                self.rounded += 1

    def _rounded(self, tensor: "ir.TensorProtocol") -> "ir.TensorProtocol":
        """A tensor of float32 with the values that the half type has for it."""
        array = np.asarray(tensor.numpy())
        if self.source != self.half:
            most = np.float32(self.half.max)
            array = np.where(np.isinf(array), array, np.clip(array, -most, most)).astype(self.half.numpy())
        return ir.Tensor(array.astype(np.float32), name=tensor.name)

    def _attributes(self, node: ir.Node) -> None:
        """Constants, and types that attributes name."""
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == self.source:
                node.attributes[name] = ir.AttrTensor(name, self._rounded(attribute.as_tensor()))
            elif name in ("value_float", "value_floats") and self.source == ir.DataType.FLOAT:
                array = np.asarray(attribute.value, np.float32)
                del node.attributes[name]
                node.attributes["value"] = ir.AttrTensor("value", self._rounded(ir.tensor(array)))
            elif name in _TYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT:
                node.attributes[name] = ir.AttrInt64(name, self._widened(attribute.as_int()))
        if node.op_type == "CastLike" and not node.domain and (dtype := node.outputs[0].dtype) is not None:
            # no CPU kernel; ONNX Runtime warns of each that it cannot fold
            node.op_type = "Cast"
            node.resize_inputs(1)
            node.attributes["to"] = ir.AttrInt64("to", int(dtype))

    def _widened(self, dtype: int) -> int:
        return int(ir.DataType.FLOAT) if dtype == self.half else dtype

    def _computes(self, node: ir.Node, value: ir.Value) -> bool:
        """Whether ``value`` may hold what the half type does not have."""
        same = node.op_type in ("Cast", "CastLike") and self.concerns(node.inputs[0])
        return self.concerns(value) and not (_moves(node) or same)

    def _round(self, graph: ir.Graph, value: ir.Value, after: ir.Node | None) -> None:
        """Let the readers of ``value`` read it rounded; an output of the graph keeps its name."""
        down = ir.node("Cast", [value], {"to": int(self.half)})
        up = ir.node("Cast", [down.outputs[0]], {"to": int(ir.DataType.FLOAT)})
        name, rounded = value.name, up.outputs[0]
        down.outputs[0].name, rounded.name = f"{name}/half", f"{name}/rounded"
        down.outputs[0].dtype, rounded.dtype = self.half, ir.DataType.FLOAT
        down.name, up.name = f"{name}/round", f"{name}/widen"
        rounded.shape = value.shape
        is_output = value.is_graph_output()
        ir.convenience.replace_all_uses_with(value, rounded, replace_graph_outputs=is_output)
        down.replace_input_with(0, value)
        if is_output:
            value.name, rounded.name = f"{name}/exact", name
        edits.put_after(graph, after, down)
        graph.insert_after(down, up)
        self.rounded += 1


def _moves(node: ir.Node) -> bool:
    if node.domain:
        return False
    if node.op_type in _MOVES_UNLESS_REDUCING:
        return node.attributes.get_string("reduction", "none") == "none"
    return node.op_type in _MOVES


#: bytes of weights above which they are stored in a separate file
_EXTERNAL_ABOVE = 1 << 28


@contextmanager
def emulated(
    model: Path | bytes, half: DType, parts: Sequence[PartSpec] = (), *, everywhere: bool = False
) -> Iterator[Path]:
    """An emulated copy of ``model``, a file or, of ``parts``, the directory of their files; gone after the block.

    ``everywhere``: as of `posexport.graph.precision.emulate.emulate`. Raises PosexportError where the graph has nothing
    to emulate.
    """
    with tempfile.TemporaryDirectory(prefix="posexport-") as folder:
        directory = Path(folder)
        for name in [part.file for part in parts] or ["model.onnx"]:
            file = model / name if parts and isinstance(model, Path) else model
            _copy(file, directory / name, half, everywhere=everywhere)
        yield directory if parts else directory / "model.onnx"


def _copy(file: Path | bytes, copy: Path, half: DType, *, everywhere: bool) -> None:
    loaded = ir.from_proto(onnx.ModelProto.FromString(file)) if isinstance(file, bytes) else ir.load(file)
    emulate(loaded, half, everywhere=everywhere)
    copy.parent.mkdir(parents=True, exist_ok=True)
    size = sum(
        value.const_value.nbytes for value in loaded.graph.initializers.values() if value.const_value is not None
    )
    if size <= _EXTERNAL_ABOVE:
        ir.save(loaded, copy)
    else:
        ir.save(loaded, copy, external_data=copy.name + ".data", size_threshold_bytes=1024)
