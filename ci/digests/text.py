"""A model as sorted lines without private names, so that what two commits write can be compared by ``diff``.

A line is a node with its attributes and what its inputs are: an input's name, an initializer's type and hash, or the
operator that computes it with a hash of what that one reads in turn, two steps up and no further. So a change shows in
the lines around it, not in all that depend on it.
"""

from collections.abc import Iterator, Mapping, Sequence

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, numpy_helper

from posexport.graph.merkle import Functions, hashed, subgraphs, tensor, typed

#: steps up from a node's input that its label depends on
STEPS = 2
#: how many numbers of a tensor are written out
NUMBERS = 8


def text(model: ModelProto) -> str:
    """Lines of the graph, of its subgraphs and of all its functions."""
    lines = [f"opset {each.domain or 'ai.onnx'} {each.version}" for each in model.opset_import]
    functions = Functions(model)
    main = Scope(functions, model.graph.node, {}, public=True)
    lines += main.of_graph("graph", model.graph)
    for function in model.functions:
        place = f"function of {len(function.input)} inputs, {len(function.output)} outputs"
        scope = Scope(functions, function.node, {name: f"input {i}" for i, name in enumerate(function.input)})
        lines += scope.lines(place)
        lines += [f"{place}: output {i} = {scope.label(name)}" for i, name in enumerate(function.output)]
    return "\n".join(sorted(lines)) + "\n"


class Scope:
    """The values of a graph or of a function's body."""

    def __init__(
        self, functions: Functions, nodes: Sequence[NodeProto], known: Mapping[str, str], *, public: bool = False
    ) -> None:
        self._functions, self._nodes, self._public = functions, nodes, public
        self._known = dict(known)
        self._made = {name: (node, i) for node in nodes for i, name in enumerate(node.output)}

    def of_graph(self, place: str, graph: GraphProto) -> Iterator[str]:
        """Inputs, initializers, nodes and outputs; of a subgraph the first and the last by their order."""
        for each in graph.initializer:
            self._known[each.name] = written(each)
            yield f"{place}: initializer {self._known[each.name]}"
        for index, each in enumerate(graph.input):
            said = each.name if self._public else f"input {index}"
            default = f" = {self._known[each.name]}" if each.name in self._known else ""
            self._known[each.name] = said
            yield f"{place}: input {said} {typed(each)}{default}"
        yield from self.lines(place)
        for index, each in enumerate(graph.output):
            said = each.name if self._public else f"{index}"
            yield f"{place}: output {said} {typed(each)} = {self.label(each.name)}"

    def lines(self, place: str) -> Iterator[str]:
        """One for each node, and those of its subgraphs."""
        for node in self._nodes:
            inputs = ", ".join(map(self.label, node.input))
            yield f"{place}: {self._operator(node)}({inputs}){self._attributes(node)}"
            for attribute in node.attribute:
                for graph in subgraphs(attribute):
                    outer = {name: f"outer {self.label(name)}" for name in [*self._known, *self._made]}
                    inner = Scope(self._functions, graph.node, outer)
                    yield from inner.of_graph(f"{place}/{self._operator(node)}.{attribute.name}", graph)

    def label(self, name: str) -> str:
        """What a value is, in a few words."""
        if not name:
            return "-"
        if name not in self._made:
            return self._known[name]
        node, index = self._made[name]
        return f"{self._operator(node)}{f'.{index}' if index else ''}~{self._near(name, STEPS)[:4]}"

    def _near(self, name: str, steps: int) -> str:
        """A hash of what computes a value."""
        if not name or name not in self._made:
            return self._known.get(name, "-")
        node, index = self._made[name]
        inputs = [self._near(each, steps - 1) for each in node.input] if steps else []
        return hashed(self._operator(node), self._attributes(node), index, inputs)

    def _operator(self, node: NodeProto) -> str:
        called = self._functions.called(node)
        if called is not None:
            return f"call of {len(called.input)} inputs#{self._functions.function(called)[:4]}"
        return f"{node.domain}::{node.op_type}" if node.domain else node.op_type

    def _attributes(self, node: NodeProto) -> str:
        shown = []
        for each in node.attribute:
            if each.type == AttributeProto.TENSOR and not each.ref_attr_name:
                shown.append(f"{each.name}={written(each.t)}")
            elif not subgraphs(each):
                shown.append("=".join(self._functions.attribute(each, {})))
        return f" {{{', '.join(sorted(shown))}}}" if shown else ""


def written(value: object) -> str:
    """Type, sizes, and the numbers of a tensor or their hash."""
    kind, sizes, bits = tensor(value)  # type: ignore[arg-type]
    few = all(size <= NUMBERS for size in sizes) and len(sizes) < 2
    numbers = numpy_helper.to_array(value).tolist() if few else f"#{bits[:8]}"  # type: ignore[arg-type]
    return f"{kind}{list(sizes)} {numbers}"
