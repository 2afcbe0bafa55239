"""Which weights of a graph are quantised, and the result for users.

Linear projections and word embeddings, each stored in one form only, and none that would grow: integers take a quarter
of a weight's bytes or less, but a node takes some 400, most of them metadata on where it was traced. In int8, which
needs about ten nodes, matrices below 40 by 40 do not shrink.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import onnx_ir as ir

from posexport.base.spec import Interface
from posexport.base.targets.precisions import PrecisionOptions
from posexport.errors import PosexportError
from posexport.graph.dataflow import content_values
from posexport.graph.precision.derived import Derived
from posexport.graph.precision.projections import (
    Projection,
    Weight,
    batches,
    logit_weights,
    projections,
    quantizable,
)
from posexport.graph.precision.rows.weights import Lookup, lookups
from posexport.graph.queries import NOTES, stays_float


@dataclass(frozen=True)
class PrecisionResult:
    """How a graph's tensors are stored.

    Attributes:
        classes: class of tensors, for instance ``linear weights`` -> a description of their precision.
        names: of all weights of linear projections and word embeddings, for ``--keep-float``.
        quantized: how many of these are quantized.
        projections: the number of linear projections by the type of their weight: ``int4``, ``int8``, ``float``.
        larger: how many are in float because quantized they would take more bytes, nodes included.
        remarks: sentences for the user.
    """

    classes: dict[str, str] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    quantized: int = 0
    projections: Mapping[str, int] = field(default_factory=dict)
    larger: int = 0
    remarks: tuple[str, ...] = ()


def check_quantized(options: PrecisionOptions, graphs: Sequence[PrecisionResult]) -> None:
    """Raises PosexportError if a pattern of ``--keep-float`` matches no weight, or nothing was quantized."""
    if not options.quantized:
        return
    names = sorted({name for projection in graphs for name in projection.names})
    for pattern in options.keep_float:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise PosexportError(
                f"--keep-float {pattern!r} matches none of {len(names)} weights; give a glob pattern of their names, "
                f"such as {_some(names)}"
            )
    if any(projection.quantized or projection.larger for projection in graphs):
        return
    if options.keep_float:
        patterns = " ".join(f"--keep-float {pattern!r}" for pattern in options.keep_float)
        raise PosexportError(
            f"{patterns} leaves none of {len(names)} weights to quantize with --precision {options.precision}; give "
            f"patterns that match fewer of them, such as {_some(names)}"
        )
    raise PosexportError(
        f"--precision {options.precision} finds no weight to quantize: the model has no linear projection of 16 "
        "channels or more and no word embeddings of 256 rows or more; leave it out, or give --precision fp16"
    )


def larger(graphs: Sequence[PrecisionResult]) -> str:
    """A sentence on the projections that stay in float because they would grow; empty if there are none."""
    count, total = (
        sum(projection) for projection in zip(*((g.larger, sum(g.projections.values())) for g in graphs), strict=True)
    )
    what = "quantized, their weights with the scales and nodes that they need would be larger than now"
    return f"{count} of {total} linear projections stay in float: {what}" if count else ""


def _some(names: Iterable[str]) -> str:
    return ", ".join(list(names)[:3])


#: occurrences of a node's name in a file: node, output, value info, reader
_NAMES = 4
#: bytes of a node or tensor without names and metadata: operator, attributes, shapes
_PLAIN = 120
#: additional bytes of the product itself: attributes, inputs, names
_LONGER = 300


@dataclass(frozen=True)
class Replacement:
    """What replaces a linear projection.

    Attributes:
        tensors: the tensors for a projection's weight.
        nodes: the number of additional nodes of a projection.
        shared_nodes: the number of nodes added to its input, once for all projections of that.
    """

    tensors: Callable[[Projection], Mapping[str, Derived]]
    nodes: int
    shared_nodes: int = 0


def shrinking(chosen: Sequence[Projection], replacement: Replacement) -> list[Projection]:
    """The projections that take fewer bytes when quantized, nodes included; all readers of a weight count together."""
    readers = Counter(projection.x for projection in chosen)
    gained: dict[ir.Value, float] = {}
    for projection in chosen:
        weight = projection.weight
        nodes = replacement.nodes + replacement.shared_nodes / readers[projection.x]
        nodes += projection.bias is not None and projection.add is None  # a Gemm's bias becomes an Add
        if weight.value not in gained:
            stored = replacement.tensors(projection)
            now, then = (
                sum(tensor.nbytes for tensor in weight.stored),
                sum(projection.nbytes for projection in stored.values()),
            )
            gained[weight.value] = now - then * len(weight.stored) - _PLAIN * (len(stored) - 1)
        gained[weight.value] -= _LONGER + nodes * node_bytes(projection.product)
    return [projection for projection in chosen if gained[projection.weight.value] > 0]


def node_bytes(like: ir.Node) -> int:
    """The bytes of a node that is inserted for ``like``, with its metadata and a longer name."""
    notes = sum(len(key) + len(note) for key, note in like.metadata_props.items() if key in NOTES)
    return _PLAIN + _NAMES * len(like.outputs[0].name or "") + notes


@dataclass(frozen=True)
class Chosen:
    """The weights that a pass quantises.

    Attributes:
        projections: in the order of the nodes.
        tables: of word embeddings.
        logits: weights that compute logits, and word embeddings, which the head may share.
        left: the number of projections in float.
        larger: how many of these would take more bytes quantized.
        names: of all weights of projections and word embeddings, quantised or not.
        batches: names of weights of several matrices, which stay in float.
    """

    projections: list[Projection]
    tables: list[Lookup]
    logits: set[ir.Value]
    left: int
    larger: int
    names: frozenset[str]
    batches: list[tuple[str, ...]]

    def result(self, classes: dict[str, str], bits: int, bits_of_logits: int) -> PrecisionResult:
        """The record of the pass; ``bits``: of a projection's weight."""
        logits = sum(projection.weight.value in self.logits for projection in self.projections)
        counts = Counter({f"int{bits}": len(self.projections) - logits})
        counts += Counter({f"int{bits_of_logits}": logits, "float": self.left})
        quantized = len(self.projections) + len(self.tables)
        return PrecisionResult(classes, self.names, quantized, counts, self.larger, self._remarks())

    def _remarks(self) -> tuple[str, ...]:
        if not self.batches:
            return ()
        many = f"{len(self.batches)} weights of several matrices stay in float, the first {self.batches[0][0]}"
        return (f"{many}: only products with one matrix are quantized",)

    @property
    def tied(self) -> set[ir.Value]:
        """Tables that a projection may share."""
        return {projection.table.value for projection in self.tables}


def choose(
    model: ir.Model,
    interface: Interface,
    options: PrecisionOptions,
    replacement: Callable[[set[ir.Value]], Replacement],
    fits: Callable[[Weight], bool] = lambda _: True,
) -> Chosen:
    """All but weights that ``--keep-float`` names, that are also read in float, or that would grow.

    ``replacement``: returns what projections become, by the set of weights that compute logits. ``fits``: whether a
    weight that computes none may be chosen.
    """
    every, every_table = projections(model, interface), lookups(model, interface)
    content = content_values(model, {spec.name: spec.role for spec in interface.inputs})
    logits = logit_weights(model.graph.outputs, every, content) | {projection.table.value for projection in every_table}
    fit = [
        projection
        for projection in quantizable(every, options.keep_float)
        if projection.weight.value in logits or fits(projection.weight)
    ]
    chosen = shrinking(fit, replacement(logits))
    larger = len(fit) - len(chosen)
    tables = [projection for projection in every_table if not stays_float(projection.table.names, options.keep_float)]
    readers = {projection.product for projection in chosen} | {projection.node for projection in tables}
    values = {projection.weight.value for projection in chosen} | {projection.table.value for projection in tables}
    shared = {value for value in values if not _read_only_by(value, readers)}
    chosen = [projection for projection in chosen if projection.weight.value not in shared]
    tables = [projection for projection in tables if projection.table.value not in shared]
    weights = [*(projection.weight for projection in every), *(projection.table for projection in every_table)]
    names = frozenset(name for weight in weights for name in weight.names)
    return Chosen(chosen, tables, logits, len(every) - len(chosen), larger, names, batches(model))


def _read_only_by(value: ir.Value, readers: set[ir.Node]) -> bool:
    """Whether all readers are quantised, directly or through a Transpose."""
    for user, _ in value.uses():
        if user in readers:
            continue
        if user.op_type != "Transpose" or not all(last in readers for last, _ in user.outputs[0].uses()):
            return False
    return not value.is_graph_output()
