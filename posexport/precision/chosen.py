"""Which weights of a graph are quantised: linear projections and word embeddings, each stored in one form only."""

from dataclasses import dataclass

import onnx_ir as ir

from posexport.graph.queries import matches
from posexport.precision.linear import Projection, projections, quantizable
from posexport.precision.rows.embeddings import Lookup, lookups
from posexport.spec import Interface
from posexport.targets.precision_options import PrecisionOptions


@dataclass(frozen=True)
class Chosen:
    """What a pass quantises.

    Attributes:
        projections: in the order of the nodes.
        tables: of word embeddings.
        left: the number of projections that stay in float.
        rows: numbers of rows of the graph's word embeddings, quantised or not: sizes of vocabularies.
        names: of all weights of projections and word embeddings, quantised or not.
    """

    projections: list[Projection]
    tables: list[Lookup]
    left: int
    rows: frozenset[int]
    names: frozenset[str]

    @property
    def quantized(self) -> int:
        """How many weights are."""
        return len(self.projections) + len(self.tables)

    @property
    def tied(self) -> set[ir.Value]:
        """Tables that projections may read as well."""
        return {each.table.value for each in self.tables}


def choose(model: ir.Model, interface: Interface, options: PrecisionOptions) -> Chosen:
    """Without what ``--keep-float`` names, and without what is read in float too: it would be stored twice."""
    every, every_table = projections(model, interface), lookups(model, interface)
    chosen = quantizable(every, options.keep_float)
    tables = [each for each in every_table if not matches(each.table.names, options.keep_float)]
    readers = {each.product for each in chosen} | {each.node for each in tables}
    values = {each.weight.value for each in chosen} | {each.table.value for each in tables}
    shared = {value for value in values if not _read_only_by(value, readers)}
    chosen = [each for each in chosen if each.weight.value not in shared]
    rows = frozenset(each.table.sizes[1] for each in every_table)
    tables = [each for each in tables if each.table.value not in shared]
    weights = [*(each.weight for each in every), *(each.table for each in every_table)]
    names = frozenset(name for weight in weights for name in weight.names)
    return Chosen(chosen, tables, len(every) - len(chosen), rows, names)


def _read_only_by(value: ir.Value, readers: set[ir.Node]) -> bool:
    """Whether all that reads it is quantised, a transposition in between left aside."""
    for user, _ in value.uses():
        if user in readers:
            continue
        if user.op_type != "Transpose" or not all(last in readers for last, _ in user.outputs[0].uses()):
            return False
    return not value.is_graph_output()
