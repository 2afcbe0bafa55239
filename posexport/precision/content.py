"""Which values of a graph hold something of the content (tokens, images, audio), and not of positions and masks alone.

What only shapes, positions or masks lead to is position arithmetic: relative position projections W_R R, networks of
distances, projections of a position table. Their weights are few, all tokens depend on them, and they are not
quantised.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from posexport.graph.operators import SHAPES, TRUTHS
from posexport.graph.propagation import Propagation
from posexport.spec import NO_CONTENT, Role


def content_values(model: ir.Model, roles: Mapping[str, Role]) -> set[ir.Value]:
    """All values, of bodies and functions too, that hold something of the content; those of unknown inputs do.

    ``roles``: by the names of the graph's inputs. A function's input counts where any call gives it content. Truth
    values of ids are masks: which tokens are padding, from which positions are counted.
    """
    content = {value for value in model.graph.inputs if roles.get(value.name or "") not in NO_CONTENT}
    Content(content, SHAPES | TRUTHS, lambda node: model.functions.get(node.op_identifier())).run(model.graph)
    return content


@dataclass(frozen=True)
class Content(Propagation):
    """Adds to ``values`` all that is computed from them, but for what the operators of ``breaks`` give.

    Attributes:
        function: the one that a node calls, if any.
    """

    values: set[ir.Value]
    breaks: Container[str]
    function: Callable[[ir.Node], ir.Function | None]

    def called(self, node: ir.Node) -> ir.Function | None:
        return self.function(node)

    def join(self, value: ir.Value, others: Sequence[ir.Value]) -> None:
        if not self.values.isdisjoint(others):
            self.values.add(value)

    def node(self, node: ir.Node) -> None:
        if node.op_type not in self.breaks and not self.values.isdisjoint(node.inputs):
            self.values.update(node.outputs)
