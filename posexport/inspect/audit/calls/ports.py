"""What the inputs of a graph are fed with: axes by what they count, and bounds of ids.

Sizes and kinds follow from declared shapes, types and names (`posexport.inspect.audit.analyses.roles`), bounds of ids
from the tables that they are looked up in.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from posexport.graph.dataflow import sources
from posexport.graph.queries import SHAPES, TRUTHS
from posexport.inspect.audit.analyses.sizes import Sizes
from posexport.inspect.audit.audited_graph import AuditedGraph

#: an axis of fixed size, or what it counts; ``other``: each of these has the same small size
Axis = int | Literal["batch", "tokens", "past", "total", "capacity", "encoder", "height", "width", "samples", "other"]
Kind = Literal["ids", "mask", "ones", "positions", "past", "values", "corners", "branch", "zero"]
#: operators that pass ids on, as their first input
_PASSING = frozenset(
    [
        *("Cast", "Unsqueeze", "Squeeze", "Reshape", "Identity", "Flatten", "Expand", "Slice", "Gather", "Concat"),
        *("Split", "Transpose", "GatherElements", "GatherND", "Tile"),
    ]
)
_COMPARING = frozenset(
    ["Equal", "ArgMax", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "TopK", "ReduceMax", "CumSum", "Not"]
)
#: names of axes of places, not of rows
_TIME = re.compile(r"^(seq(uence)?|time|frames?|tokens?)(_?(len(gth)?|steps?))?$", re.IGNORECASE)
_UNKNOWN = 100
_IMAGE = 4


class UnknownError(Exception):
    """An input cannot be fed; the message says which and why."""


@dataclass(frozen=True)
class Port:
    """One input.

    Attributes:
        name: as the graph has it.
        dtype: NumPy's name.
        axes: see `Axis`.
        kind: see `Kind`.
        rows: ids are below it.
        compared: constants that the graph compares its ids with: padding, end of sequence.
        is_read: the graph looks at ids themselves, not only at their rows of tables: padding keeps its id.
    """

    name: str
    dtype: str
    axes: tuple[Axis, ...]
    kind: Kind
    rows: int = 0
    compared: tuple[int, ...] = ()
    is_read: bool = False


def ports(subject: AuditedGraph) -> list[Port]:
    """All inputs that have no default; UnknownError where one cannot be fed."""
    fed = [value for value in subject.graph.inputs if not value.is_initializer()]
    kinds = _Axes(subject, fed)
    return [_port(value, kinds, subject) for value in fed]


def _port(value: ir.Value, kinds: "_Axes", subject: AuditedGraph) -> Port:
    name, dtype = value.name or "", value.dtype
    if dtype is None or value.shape is None:
        raise UnknownError(f"the input {name} has no declared {'type' if dtype is None else 'shape'}")
    if dtype.name not in ("INT64", "INT32", "FLOAT", "FLOAT16", "DOUBLE", "BOOL"):
        raise UnknownError(f"the input {name} is of type {dtype.name}")
    axes = kinds.of(value)
    kind = _kind(value, axes, subject)
    port = Port(name, dtype.numpy().name, axes, kind)
    if kind != "ids":
        return port
    compared, is_read = _compared(value)
    return Port(name, port.dtype, axes, kind, _rows(value, subject), compared, is_read)


def _kind(value: ir.Value, axes: tuple[Axis, ...], subject: AuditedGraph) -> Kind:
    name, dtype = (value.name or "").lower(), value.dtype
    assert dtype is not None
    roles = subject.roles
    if value in roles.past:
        return "past"
    if value in roles.masks:
        if len(axes) == 2:
            return "mask"
        if dtype.is_floating_point():
            raise UnknownError(f"the mask {value.name} of rank {len(axes)} may be added or multiplied")
        return "ones"
    if dtype == ir.DataType.BOOL:
        return "branch" if "branch" in name or "cache" in name else "ones"
    if dtype.is_floating_point():
        return "values"
    if "keep" in name and len(axes) < 2:
        return "zero"
    if value in roles.positions:
        return "positions"
    return "corners" if re.search(r"bbox|boxes", name) and axes[-1:] == (4,) else "ids"


class _Axes:
    """What the axes of all inputs count; axes of one name are one."""

    def __init__(self, subject: AuditedGraph, fed: list[ir.Value]) -> None:
        self._sizes, self._roles = subject.sizes, subject.roles
        self._known: dict[str, Axis] = {}
        roles = subject.roles
        tokens = [v for v in (*roles.ids, *roles.positions) if not self._is_encoders(v)]
        # the first axis of almost everything; of positions, which rows may share, only if others say so
        for value in fed:
            if value not in roles.positions and len(self._shape(value)) > 1 and not self._counts_time(value):
                self._set(self._shape(value)[:1], "batch")
        sounds = [value for value in fed if _is_sound(value)]
        for value in sounds:
            self._set(self._shape(value)[1:2], "samples")
        for value in tokens:
            self._set(self._shape(value)[-1:], "tokens")
        self._caches(subject)
        places: Axis = "total" if roles.is_decoder else "samples" if sounds and not tokens else "tokens"
        for value in roles.masks:
            if len(self._shape(value)) == 2:
                self._set(self._shape(value)[1:], "encoder" if self._is_encoders(value) else places)
        for value in fed:
            self._rest(value)

    def of(self, value: ir.Value) -> tuple[Axis, ...]:
        return tuple(size if isinstance(size, int) else self._known[size] for size in self._shape(value))

    def _shape(self, value: ir.Value) -> tuple[int | str, ...]:
        return self._sizes.of(value) or ()

    def _counts_time(self, value: ir.Value) -> bool:
        """Whether the first axis is called a length: rows that follow each other, as a recurrent layer reads them."""
        first = self._shape(value)[0]
        return isinstance(first, str) and bool(_TIME.search(self._sizes.text(first)))

    def _caches(self, subject: AuditedGraph) -> None:
        """Axes of past tokens. A cache that does not grow has the same axis before and after a call."""
        shapes = [subject.sizes.declared.get(value) or () for value in self._roles.present]
        after = {str(size.value) for shape in shapes for size in shape if not isinstance(size, int)}
        for value in self._roles.past:
            for size in self._shape(value)[1:]:
                growing: Axis = "capacity" if self._sizes.text(size) in after else "past"
                self._set([size], "encoder" if self._is_encoders(value) else growing)

    def _rest(self, value: ir.Value) -> None:
        """Axes of inputs without a role: pictures, sound, embeddings."""
        shape, name = self._shape(value), (value.name or "").lower()
        is_float = value.dtype is not None and value.dtype.is_floating_point()
        is_picture = "pixel" in name or "image" in name or (is_float and len(shape) == _IMAGE)
        channels = _channels(value, self._sizes)
        if channels is not None and len(shape) > 2:
            self._set(shape[1:2], channels)
        for axis, size in enumerate(shape):
            kind: Axis = "other"
            if is_picture and len(shape) > 2:
                first = 1 if shape[-1] in (1, 3) or len(shape) < _IMAGE else 2
                kind = ("height", "width")[axis - first] if 0 <= axis - first < 2 else "other"
            elif self._is_encoders(value) and axis:
                kind = "encoder"
            elif axis == 1:
                kind = "tokens"
            self._set([size], kind)

    def _set(self, sizes: Sequence[int | str], kind: Axis) -> None:
        for size in sizes:
            if isinstance(size, str):
                self._known.setdefault(size, kind)

    @staticmethod
    def _is_encoders(value: ir.Value) -> bool:
        return bool(re.search(r"encoder|cross", re.sub(r"decoder", "", (value.name or "").lower())))


def _channels(value: ir.Value, sizes: Sizes) -> int | None:
    """How many channels the convolution that reads an input has weights for; optimum declares that axis as free."""
    for user, index in value.uses():
        if user.op_type in ("Cast", "Identity") and not user.domain:
            return _channels(user.outputs[0], sizes)
        shape = sizes.of(user.inputs[1]) if user.op_type == "Conv" and index == 0 else None
        if shape is not None and isinstance(shape[1], int):
            return shape[1] * (user.attributes.get_int("group", 1) or 1)
    return None


def _is_sound(value: ir.Value) -> bool:
    """Whether an input is a waveform or a spectrogram, by its name: a row has many samples for each token."""
    is_float = value.dtype is not None and value.dtype.is_floating_point()
    return is_float and bool(re.search("input_values|audio|wave|features|speech", (value.name or "").lower()))


def _lookups(subject: AuditedGraph) -> Iterator[tuple[ir.Value, int]]:
    """Indices and rows of every table that is looked up by them."""
    for node in subject.nodes:
        if node.op_type not in ("Gather", "GatherBlockQuantized", "GatherElements", "GatherND"):
            continue
        table, indices = node.inputs[:2]
        if table is None or indices is None or node.attributes.get_int("axis", 0) != 0:
            continue
        tensor = ir.convenience.get_const_tensor(table)
        if tensor is None and (producer := table.producer()) is not None and producer.inputs:
            # a table of integers or halves is widened first
            tensor = ir.convenience.get_const_tensor(producer.inputs[0]) if producer.inputs[0] is not None else None
        if tensor is not None and len(tensor.shape) > 1 and isinstance(tensor.shape[0], int):
            yield indices, tensor.shape[0]


def _rows(value: ir.Value, subject: AuditedGraph) -> int:
    """The rows of the smallest table that is read by ``value``."""
    tables = [rows for indices, rows in _lookups(subject) if value in set(sources(indices, breaks=SHAPES | TRUTHS))]
    if tables:
        return min(tables)
    name = (value.name or "").lower()
    return 2 if "type" in name or "label" in name else _UNKNOWN


def _compared(value: ir.Value) -> tuple[tuple[int, ...], bool]:
    """The constants that ids are compared with, and whether the graph looks at ids at all."""
    constants: list[int] = []
    waiting, is_read = [value], False
    while waiting:
        current = waiting.pop()
        for node, place in current.uses():
            if node.op_type in _PASSING and (place == 0 or node.op_type == "Concat"):
                waiting += node.outputs
            elif node.op_type in _COMPARING:
                is_read = True
                for other in node.inputs:
                    tensor = None if other is None else ir.convenience.get_const_tensor(other)
                    if tensor is not None and tensor.size == 1:
                        constants.append(int(tensor.numpy().reshape(())))
    return tuple(constants), is_read
