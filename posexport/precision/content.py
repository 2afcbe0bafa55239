"""Which values of a graph hold something of the content (tokens, images, audio), and not of positions and masks alone.

What only shapes, positions or masks lead to is position arithmetic: relative position projections W_R R, networks of
distances, projections of a position table. Their weights are few, all tokens depend on them, and they are not
quantised.
"""

from collections.abc import Mapping

import onnx_ir as ir

from posexport.graph.bodies import bodies
from posexport.spec import Role

#: what inputs say of positions and padding alone
_NO_CONTENT: tuple[Role, ...] = ("mask", "positions")
#: nothing of what the input holds is left in the output
_SHAPES = frozenset(["Shape", "Size", "ConstantOfShape"])
#: truth values of ids are masks: which tokens are padding, from which positions are counted
TRUTHS = frozenset(["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or", "IsNaN"])
_BREAKS = _SHAPES | TRUTHS


def content_values(model: ir.Model, roles: Mapping[str, Role]) -> set[ir.Value]:
    """All values, of bodies and functions too, that hold something of the content; those of unknown inputs do.

    ``roles``: by the names of the graph's inputs. A function's input counts where any call gives it content.
    """
    content = {value for value in model.graph.inputs if roles.get(value.name or "") not in _NO_CONTENT}
    _follow(model.graph, content, model)
    # a call in a function may come before what calls that function was seen: until nothing changes
    before = -1
    while before != len(content):
        before = len(content)
        for function in model.functions.values():
            _follow(function, content, model)
    return content


def _follow(nodes: "ir.Graph | ir.Function", content: set[ir.Value], model: ir.Model) -> None:
    """Add what ``nodes`` compute from ``content`` to it, and what functions that they call are passed."""
    for node in nodes:
        inputs = [value in content for value in node.inputs]
        if node.op_type in _BREAKS and not node.domain:
            continue
        function = model.functions.get(node.op_identifier())
        if function is not None:
            content.update(inner for inner, holds in zip(function.inputs, inputs, strict=False) if holds)
        holds = any(inputs)
        for body in bodies(node).values():
            if holds and node.op_type != "If":
                content.update(body.inputs)
            _follow(body, content, model)
            holds = holds or any(value in content for value in body.outputs)
        if holds:
            content.update(node.outputs)
