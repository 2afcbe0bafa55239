"""PX603: a weight of the graph with a tensor's name, or nearly its values, and other values."""

from collections.abc import Iterator

from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    ledger = subject.ledger
    for other in ledger.differing if ledger is not None else ():
        if other.error is not None:
            what = f"differs from it by {other.error:.1%} of its norm, more than rounding does"
        else:
            what = "has its name and size, and other values"
        yield Place(
            f"weight {other.item.name!r} {list(other.item.shape)}: {other.name} of the checkpoint {what}",
            [other.item.name],
            # methods of quantization that look at activations move further than rounding
            severity="warning" if other.item.bits < 16 and other.error is not None else None,
        )


RULE = Rule(
    code="PX603",
    name="differing-weight",
    severity="error",
    finds="a weight of the graph has the name or nearly the values of a tensor of the checkpoint, and other values",
    why="The file was made from another revision, a fine-tuned model or a damaged one: its outputs are not this "
    "checkpoint's.",
    remedy="Take the checkpoint that the file was made from, or export this one again.",
    check=_check,
    reads="checkpoint",
)
