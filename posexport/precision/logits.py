"""Finds the weights that give logits: what errs there, nothing behind it evens out.

By the name of the output, not by sizes: definitions call ``logits`` what a head answers over a vocabulary, characters
or classes, and a vocabulary may be as large as any layer, or smaller than all.
"""

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from posexport.graph.bodies import bodies
from posexport.precision.linear import Projection

#: of outputs, alone or after an underscore
LOGITS = "logits"
#: what a head does to each logit (its bias, a scale, a soft cap), and what moves logits
_BEHIND = {"Add", "Div", "Mul", "Sub", "Tanh", "Where"}
_BEHIND |= {"Cast", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}


def logit_weights(outputs: Iterable[ir.Value], every: Sequence[Projection], content: set[ir.Value]) -> set[ir.Value]:
    """Of the projections that graph outputs called `LOGITS` come from, with nothing but `_BEHIND` in between.

    ``content``: values that hold tokens (`posexport.graph.dataflow`). Of two that an operator reads neither is
    followed: a sum of hidden states is no head's result.
    """
    by_output = {each.output: each.weight.value for each in every}
    weights: set[ir.Value] = set()
    waiting = [value for value in outputs if (value.name or "").split("_")[-1] == LOGITS]
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if value in by_output:
            weights.add(by_output[value])
        elif node is not None and node.op_type == "If":
            waiting += [body.outputs[value.index() or 0] for body in bodies(node).values()]
        elif node is not None and node.op_type in _BEHIND and not node.domain:
            read = [each for each in node.inputs if each in content]
            waiting += read if len(read) == 1 else []
    return weights
