"""PX304: a mask of ones and zeros that is added to the scores gives padding the lowest score."""

import numpy as np
import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.inspect.audit.analyses.attention import adders, lowest_score
from posexport.inspect.audit.repairs.repair import NotRepairedError, Repair
from posexport.inspect.audit.rule import Place
from posexport.inspect.audit.rules.unscaled_mask import elements
from posexport.inspect.audit.subject import Subject


def _apply(subject: Subject, place: Place) -> list[ir.Value]:
    """All attentions that the mask is added to; what tokens get is as it was.

    Before: ``Add(scores, mask)``, 1 for a token and 0 for padding
    After:  ``Add(scores, Where(Less(mask, 0.5), lowest / 2, mask))``
    """
    attention = next((other for other in subject.attentions if other.node is place.nodes[-1]), None)
    added = next((x for x in attention.added if elements(subject, x) is not None), None) if attention else None
    if added is None:
        return []  # repaired with a layer before
    token, padding = elements(subject, added) or (1.0, 0.0)
    # masks of ai.onnx Attention may be integers
    dtype = added.dtype if added.dtype is not None and added.dtype.is_floating_point() else None
    dtype = dtype or (attention.node.outputs[0].dtype if attention else None)
    if token == padding or dtype is None:
        raise NotRepairedError(f"{added.name!r} is the same for tokens and padding")
    g = Builder.behind(subject.graph, added)
    mask = added if added.dtype == dtype else g.Cast(added, to=dtype)
    compare = g.Less if padding < token else g.Greater
    is_padding = compare(mask, np.asarray((token + padding) / 2, dtype.numpy()))
    masked = g.Where(is_padding, lowest_score(dtype), mask)
    sizes = subject.sizes.of(added) or ()
    if len(sizes) == len("BS") and subject.sizes.is_batch(sizes[0]):  # PX311: queries would meet the batch
        masked = g.Unsqueeze(masked, [1, 2])
    changed: list[ir.Value] = []
    for user in (other for other in subject.attentions if added in other.added):
        for node, index in adders(user, added):
            node.replace_input_with(index, _for_queries(masked, node))
            changed += node.outputs
    return changed


def _for_queries(mask: ir.Value, node: ir.Node) -> ir.Value:
    """A mask [B, 1, 1, S] with a row for each query, where the kernel of ai.onnx Attention needs them."""
    q = node.inputs[0]
    if node.op_type != "Attention" or node.domain or q is None or q.shape is None:
        return mask
    g = Builder.at(node)
    return g.Expand(mask, g.shape(g.size(q, len(q.shape) - 2), [1]))


REPAIR = Repair(does="padding gets the lowest score where a mask of ones and zeros was added", apply=_apply)
