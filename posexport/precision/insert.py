"""Adds nodes to a graph one after another."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir


class Insert:
    """Nodes after ``after``, or before ``before``; with neither at the graph's start, after its constants.

    They were traced where the nodes ``like`` were, and what they give is called ``name`` and more.
    """

    def __init__(
        self,
        graph: ir.Graph,
        like: Sequence[ir.Node],
        name: str,
        *,
        after: ir.Node | None = None,
        before: ir.Node | None = None,
    ) -> None:
        self._graph, self._like, self._name = graph, like, name
        self._after = after
        self._before = before or (None if after else _start_of(graph))

    def __call__(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        suffix: str,
        dtype: ir.DataType,
        attributes: Mapping[str, int | Sequence[int]] | None = None,
        *,
        shape: ir.Shape | None = None,
        domain: str = "",
    ) -> ir.Value:
        """The output of one operator."""
        name = f"{self._name}_{suffix}"
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=None if shape is None else ir.Shape(shape))
        node = ir.node(op_type, inputs, attributes, domain=domain, outputs=[value], name=f"node_{name}")
        for other in self._like:
            for key, note in other.metadata_props.items():
                node.metadata_props.setdefault(key, note)
        if self._before is not None:
            self._graph.insert_before(self._before, node)
        else:
            assert self._after is not None
            self._graph.insert_after(self._after, node)
            self._after = node
        return value


def _start_of(graph: ir.Graph) -> ir.Node:
    """The first node that is no constant: before it stands what graph inputs lead to."""
    return next(node for node in graph if node.op_type != "Constant" or node.domain)
