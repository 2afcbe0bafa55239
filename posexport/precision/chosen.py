"""Which weights of a graph are quantised: linear projections and word embeddings, each stored in one form only."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from posexport.graph.dataflow import content_values
from posexport.graph.queries import matches
from posexport.precision.linear import Projection, projections, quantizable
from posexport.precision.logits import logit_weights
from posexport.precision.result import PrecisionResult
from posexport.precision.rows.embeddings import Lookup, lookups
from posexport.precision.worth import Replacement, shrinking
from posexport.spec import Interface
from posexport.targets.precision_options import PrecisionOptions


@dataclass(frozen=True)
class Chosen:
    """What a pass quantises.

    Attributes:
        projections: in the order of the nodes.
        tables: of word embeddings.
        logits: weights that give logits, and those of word embeddings, which a projection that reads them shares.
        left: the number of projections that stay in float.
        larger: how many of these do because quantized they would take more bytes.
        names: of all weights of projections and word embeddings, quantised or not.
    """

    projections: list[Projection]
    tables: list[Lookup]
    logits: set[ir.Value]
    left: int
    larger: int
    names: frozenset[str]

    def result(self, classes: dict[str, str], bits: int, bits_of_logits: int) -> PrecisionResult:
        """What was done, where the weights of projections have so many bits."""
        logits = sum(each.weight.value in self.logits for each in self.projections)
        counts = Counter({f"int{bits}": len(self.projections) - logits})
        counts += Counter({f"int{bits_of_logits}": logits, "float": self.left})
        return PrecisionResult(classes, self.names, len(self.projections) + len(self.tables), counts, self.larger)

    @property
    def tied(self) -> set[ir.Value]:
        """Tables that projections may read as well."""
        return {each.table.value for each in self.tables}


def choose(
    model: ir.Model,
    interface: Interface,
    options: PrecisionOptions,
    replacement: Callable[[set[ir.Value]], Replacement],
) -> Chosen:
    """Without what ``--keep-float`` names, what is read in float too (it would be stored twice), and what would grow.

    ``replacement``: what projections become, where it is known which weights give logits.
    """
    every, every_table = projections(model, interface), lookups(model, interface)
    content = content_values(model, {spec.name: spec.role for spec in interface.inputs})
    logits = logit_weights(model.graph.outputs, every, content) | {each.table.value for each in every_table}
    fit = quantizable(every, options.keep_float)
    chosen = shrinking(fit, replacement(logits))
    larger = len(fit) - len(chosen)
    tables = [each for each in every_table if not matches(each.table.names, options.keep_float)]
    readers = {each.product for each in chosen} | {each.node for each in tables}
    values = {each.weight.value for each in chosen} | {each.table.value for each in tables}
    shared = {value for value in values if not _read_only_by(value, readers)}
    chosen = [each for each in chosen if each.weight.value not in shared]
    tables = [each for each in tables if each.table.value not in shared]
    weights = [*(each.weight for each in every), *(each.table for each in every_table)]
    names = frozenset(name for weight in weights for name in weight.names)
    return Chosen(chosen, tables, logits, len(every) - len(chosen), larger, names)


def _read_only_by(value: ir.Value, readers: set[ir.Node]) -> bool:
    """Whether all that reads it is quantised, a transposition in between left aside."""
    for user, _ in value.uses():
        if user in readers:
            continue
        if user.op_type != "Transpose" or not all(last in readers for last, _ in user.outputs[0].uses()):
            return False
    return not value.is_graph_output()
