"""PX303: masks of minus infinity end at a number, so that a query without keys has probabilities."""

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.inspect.audit.analyses.attention import adders, lowest_score
from posexport.inspect.audit.analyses.scalars import is_infinite
from posexport.inspect.audit.repairs.repair import NotRepairedError, Repair
from posexport.inspect.audit.rule import Place
from posexport.inspect.audit.subject import Subject


def _apply(subject: Subject, place: Place) -> list[ir.Value]:
    """All attentions of the place; a mask that layers share is bounded once.

    Before: ``Add(scores, mask)`` and ``Where(kept, scores, -inf)``
    After:  ``Add(scores, Max(mask, lowest / 2))`` and ``Where(kept, scores, lowest / 2)``

    Half of the lowest number, so that a sum with a negative score or a second mask stays one. The probability of a
    masked key is 0 as before wherever a key is left.
    """
    bounded: dict[ir.Value, ir.Value] = {}
    changed: list[ir.Value] = []
    for attention in (other for other in subject.attentions if other.node in place.nodes):
        for added in attention.added:
            if added.dtype is None or not added.dtype.is_floating_point():
                raise NotRepairedError(f"the type of {added.name!r}, which is added to the scores, is not known")
            if added not in bounded:
                g = Builder.behind(subject.graph, added)
                bounded[added] = g.Max(added, lowest_score(added.dtype))
            for node, index in adders(attention, added):
                node.replace_input_with(index, bounded[added])
                changed += node.outputs
        for _, fill, where in attention.fills:
            if is_infinite(fill):
                g = Builder.at(where)
                lowest = g.Constant(value=ir.tensor(lowest_score(fill.dtype or ir.DataType.FLOAT)))
                where.replace_input_with(list(where.inputs).index(fill), lowest)
                changed += where.outputs
    return changed


REPAIR = Repair(does="masks of minus infinity end at a finite number", apply=_apply)
