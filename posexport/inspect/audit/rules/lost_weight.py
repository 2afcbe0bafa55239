"""PX601: a tensor of the checkpoint that the graph does not have."""

from collections.abc import Iterator

from posexport.inspect.audit.ledger.lost import lost, names
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    ledger = subject.ledger
    if ledger is None:
        return
    ports = [value.name or "" for value in (*subject.graph.inputs, *subject.graph.outputs)]
    for gone in lost(ledger, ports):
        what = "weights of the checkpoint are" if len(gone.tensors) > 1 else "a weight of the checkpoint is"
        then = ", or in a table that was computed with it" if gone.folded else ""
        yield Place(
            f"{names(gone.tensors)}: {what} not in the graph, in no form that is known{then}",
            [gone.tensors[0].name],
            severity=gone.severity,
            remedy="Nothing to do, if your task does not need this module." if gone.severity == "note" else None,
        )
    for entry in ledger.entries:
        if entry.rows is not None:
            yield Place(
                f"{entry.name}: the graph has {entry.rows[0]} of its {entry.rows[1]} rows",
                [entry.matches[0].item.name],
                severity="warning",
            )


RULE = Rule(
    code="PX601",
    name="lost-weight",
    severity="error",
    finds="a tensor of the checkpoint is not in the graph: not transposed, joined, split, scaled or quantized either",
    why="The graph computes without it: a layer, a bias or a projection was dropped or replaced in the export. A head "
    "of another task is a note.",
    remedy="Export again from this checkpoint and compare outputs (posexport verify FILE --against CHECKPOINT).",
    check=_check,
    reads="checkpoint",
)
