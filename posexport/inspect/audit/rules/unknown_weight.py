"""PX602: a large weight of the graph that is none of the checkpoint's."""

from collections.abc import Iterator

from posexport.inspect.audit.ledger.lost import lost
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    ledger = subject.ledger
    if ledger is None:
        return
    # tables that were computed with lost weights
    computed = [gone for gone in lost(ledger, ()) if gone.folded]
    for item in ledger.unknown:
        node = ledger.nodes.get(item.name)
        yield Place(
            f"weight {item.name!r} {list(item.shape)} is no tensor of the checkpoint, nor a part or a form of one",
            [item.name, *([node] if node is not None else [])],
            severity="note" if computed else None,
        )


RULE = Rule(
    code="PX602",
    name="unknown-weight",
    severity="warning",
    finds="a large weight of the graph is no tensor of the checkpoint",
    why="It is random, from another checkpoint, or was computed at the export: a noise that should be drawn in each "
    "call, a layer of a fine-tuned model.",
    remedy="Ask where the file was exported from; export again from this checkpoint.",
    check=_check,
    reads="checkpoint",
)
