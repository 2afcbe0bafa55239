"""Values that are positions: ranges over an axis, counts of a mask, and inputs that are called so."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from posexport.graph.dataflow import sources
from posexport.graph.queries import COMPARISONS, SHAPES, TRUTHS, producer
from posexport.inspect.audit.analyses.roles import Roles
from posexport.inspect.audit.analyses.sizes import Sizes
from posexport.inspect.audit.analyses.weights import stored

#: where positions come from; a buffer is cut to the length, and no longer input fits
Origin = Literal["range", "count", "input", "buffer"]
#: operators after which an index is not the position any more, or is bounded
_BOUNDING = frozenset(("Clip", "Min", "Mod", "Where", "Log", "ArgMax", "TopK", "ReduceMin"))
#: rows that tables have beyond the length (padding ids, RoBERTa's offset)
_EXTRA = 8
#: limits that are lower than the table's rows by up to this part of them
_BELOW = 4


@dataclass(frozen=True)
class Lookup:
    """A Gather of rows of a table by position.

    Attributes:
        node: the Gather.
        table: the weight, [rows, ..].
        rows: their number.
        origin: see `Origin`.
        bounded: indices are clipped, or a comparison with about ``rows`` decides before.
    """

    node: ir.Node
    table: ir.Value
    rows: int
    origin: Origin
    bounded: bool


def lookups(nodes: list[ir.Node], roles: Roles, sizes: Sizes) -> Iterator[Lookup]:
    """All lookups of position tables."""
    for node in nodes:
        if node.op_type != "Gather" or node.domain or node.attributes.get_int("axis", 0) != 0:
            continue
        table, indices = stored(node.inputs[0]), node.inputs[1]
        shape = sizes.of(table)
        if table is None or indices is None or shape is None or len(shape) < 2 or shape[0] == 1:
            continue
        if not isinstance(shape[0], int) or ir.convenience.get_const_tensor(indices) is not None:
            continue
        if (origin := origin_of(indices, roles)) is not None:
            yield Lookup(node, table, shape[0], origin, _is_bounded(indices, shape[0]))


def origin_of(indices: ir.Value, roles: Roles) -> Origin | None:
    """Where positions come from; None if the value is no position (token ids, buckets of distances)."""
    reached = list(sources(indices, breaks=SHAPES | TRUTHS))
    if any(value in roles.positions for value in reached):
        return "input"
    kinds = {node.op_type for value in reached if (node := value.producer()) is not None and not node.domain}
    if "CumSum" in kinds:
        return "count"
    if "Range" in kinds:
        return "range"
    # torch keeps position_ids as a buffer, [1, limit], and cuts it
    return "buffer" if any(_is_arange(value) for value in reached) else None


def _is_arange(value: ir.Value) -> bool:
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size < 3 or tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        return False
    return bool(np.array_equal(tensor.numpy().reshape(-1), np.arange(tensor.size)))


def _is_bounded(indices: ir.Value, rows: int) -> bool:
    """Whether an operator keeps indices within the table, or a comparison with its size makes the call fail."""
    steps = [node for value in sources(indices, breaks=SHAPES) if (node := value.producer()) is not None]
    if any(node.op_type in _BOUNDING and not node.domain for node in steps):
        return True
    if any(_reads_constant(value) for value in sources(indices, breaks=SHAPES)):
        return True
    # a guard compares positions, or sizes in front of them; on a device it replaces what was read beyond
    everything = [*sources(indices, breaks=())]
    steps = [node for value in everything if (node := value.producer()) is not None]
    readers = [node for value in sources(indices, breaks=SHAPES) for node, _ in value.uses()]
    comparisons = [node for node in (*steps, *readers) if node.op_type in COMPARISONS | {"Clip", "Min"}]
    return any(_near(value, rows) for node in comparisons for value in node.inputs if value is not None)


def _reads_constant(value: ir.Value) -> bool:
    """Whether a value has rows of a constant: buckets of distances."""
    node = producer(value, "Gather")
    table = None if node is None else node.inputs[0]
    return table is not None and ir.convenience.get_const_tensor(table) is not None


def _near(value: ir.Value, rows: int) -> bool:
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size > 4:
        return False
    numbers = tensor.numpy().astype(np.float64)
    times = np.maximum(np.round(numbers / rows), 1)  # convolutions in front of a table make one row of several inputs
    beyond = numbers / times - rows
    # a limit below the table's end keeps positions within it as well: CANINE's downsampling needs a quarter more rows
    return bool(((beyond >= -max(_EXTRA, rows // _BELOW)) & (beyond <= _EXTRA)).any())
