"""Values of sizes and weights for all past and new tokens of one row without padding."""

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.graph.passes.cache.colours import Colours
from posexport.graph.passes.cache.counted import Counted
from posexport.graph.queries import sizes


class Whole:
    """Copies of the nodes that compute them, with the number of all tokens in place of the number of new ones.

    What the traced graph asks of the batch is 1, its mask is all ones, and its positions are 0, 1, 2 ...
    """

    def __init__(self, g: Builder, colours: Colours, counted: Counted) -> None:
        self.g, self.colours, self.counted = g, colours, counted
        self._of: dict[ir.Value, ir.Value] = {}

    def of(self, value: ir.Value) -> ir.Value:
        """``value`` for all tokens; itself where it is the same for every input."""
        if value not in self._of:
            self._of[value] = self._computed(value)
        return self._of[value]

    def _computed(self, value: ir.Value) -> ir.Value:
        g, ids, node = self.g, self.colours.ids, value.producer()
        if value is self.colours.mask:
            return g.op("Expand", 1, g.shape([1], self.counted.total), shape=[1, None])
        if value is self.colours.positions:
            return g.op("Unsqueeze", g.Range(0, g.scalar(self.counted.total), 1), [0], shape=[1, None])
        if node is None:
            return value
        if node.op_type == "Shape" and not node.domain and node.inputs[0] is ids:
            start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", 2)
            parts: list[ir.Value | list[int]] = [[1], self.counted.total]
            chosen = parts[start:end]
            return chosen[0] if len(chosen) == 1 and isinstance(chosen[0], ir.Value) else g.shape(*chosen)
        inputs = [None if operand is None else self.of(operand) for operand in node.inputs]
        if all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
            return value
        copied = ir.node(
            node.op_type,
            inputs,
            node.attributes.copy(),
            domain=node.domain,
            num_outputs=len(node.outputs),
            version=node.version,
        )
        copied.metadata_props.update(node.metadata_props)
        outputs = g.add(copied)
        for old, new in zip(node.outputs, outputs, strict=True):
            new.type = old.type
            if sizes(old) is not None:
                new.shape = ir.Shape([size if isinstance(size, int) else None for size in sizes(old) or ()])
            self._of[old] = new
        return self._of[value]
