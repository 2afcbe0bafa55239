"""PX103: a causal mask of the example's length is computed for the length of the call."""

import numpy as np
import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.tools.audit.repairs.repair import NotRepairedError, Repair
from posexport.tools.audit.rule import Place
from posexport.tools.audit.subject import Subject


def _apply(subject: Subject, place: Place) -> list[ir.Value]:
    """Replaces the constant.

    Before: ``Add(scores [B, H, T, T], mask [1, 1, 17, 17])``
    After:  ``Add(scores, Where(Range(T) <= Unsqueeze(Range(T), -1), kept, dropped))``
    """
    conflict = next((each for each in subject.conflicts if each.node is place.nodes[0]), None)
    if conflict is not None and conflict.fixed not in conflict.node.inputs:
        return []  # shared with a layer before
    tensor = None if conflict is None else ir.convenience.get_const_tensor(conflict.fixed)
    if conflict is None or tensor is None or len(tensor.shape) < 2 or tensor.size > 1 << 22:
        raise NotRepairedError("what it was computed from is not in the file; export it again")
    mask = tensor.numpy()
    square = mask.reshape(-1, *mask.shape[-2:])[0]
    lower = np.tril(np.ones(square.shape, bool))
    others = [v for v in conflict.node.inputs if v is not None and v is not conflict.fixed]
    scores = next((v for v in others if (s := subject.sizes.of(v)) and len(s) > 1 and s[-1] == s[-2]), None)
    if mask.size != square.size or square.shape[0] != square.shape[1] or scores is None:
        raise NotRepairedError(f"{conflict.fixed.name!r} is no causal mask; export it again")
    kept, dropped = square[0, 0], square[0, -1]
    if kept == dropped or not np.array_equal(square, np.where(lower, kept, dropped)):
        raise NotRepairedError(f"{conflict.fixed.name!r} is no causal mask; export it again")

    # all layers share the constant, and the first one's sizes are all layers'
    g = Builder.at(conflict.node, name=f"{conflict.fixed.name}_causal")
    columns = g.range(g.Constant(value_ints=[0]), g.size(scores, -1))
    seen = g.LessOrEqual(columns, g.Unsqueeze(columns, [-1]))
    computed = g.Where(seen, np.asarray(kept), np.asarray(dropped))
    users = [user for user, _ in conflict.fixed.uses()]
    for user, index in list(conflict.fixed.uses()):
        user.replace_input_with(index, computed)
    return [value for user in users for value in user.outputs]


REPAIR = Repair(does="the causal mask is computed for the length of the call", apply=_apply)
