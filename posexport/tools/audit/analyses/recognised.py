"""What a graph has, for the lines that an audit prints whether anything is wrong or not."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from posexport.tools.audit.finding import Recognised
from posexport.tools.audit.rule import name_of

if TYPE_CHECKING:
    from posexport.tools.audit.subject import Subject


def recognised(subject: "Subject", file: str) -> Iterator[Recognised]:
    """Attention and position encodings of a graph, one record for each kind."""
    fused = [attention.node for attention in subject.attentions if attention.fused]
    by_hand = [attention.node for attention in subject.attentions if not attention.fused]
    for op_type in dict.fromkeys(node.op_type for node in fused):
        nodes = [node for node in fused if node.op_type == op_type]
        yield Recognised(
            file=file, kind="attention", what=f"{len(nodes)} fused ({op_type})", nodes=tuple(map(name_of, nodes))
        )
    if by_hand:
        yield Recognised(
            file=file,
            kind="attention",
            what=f"{len(by_hand)} of several nodes (MatMul, Softmax, MatMul)",
            nodes=tuple(map(name_of, by_hand)),
        )
