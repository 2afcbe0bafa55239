"""Writes ONNX nodes: the body of a function, or nodes in a graph, one call per operator.

One class in one file, since every lowering and pass is written with it: its methods are what they can write.

A function's body, with scopes for the branches of If and the bodies of Scan and Loop:

    g = Builder(18)
    x, y = g.input("x"), g.input("y")
    scaled = g.Mul(x, g.CastLike(g.attribute("scale", float), x))
    small = g.scalar(g.LessOrEqual(g.size(x, 1), [128]))
    out = g.if_(small, lambda: g.MatMul(scaled, y), lambda: x, branches=("small", "large"), name="out")
    g.function("example", "Product", [x, y], {"out": out})

Nodes before or after a node of a graph, with inferred types and shapes:

    g = Builder.at(node)
    node.replace_input_with(0, g.Reshape(g.Transpose(x, perm=[0, 2, 1, 3]), [0, 0, -1]))

Python numbers as operands become constants: in a graph initialisers, a float in the type of the operator's first
floating-point operand. All operators used here are pure, so a call with the same operator, operands and attributes as
an earlier one in the same scope, or in one around it, returns the earlier node's outputs.

One file of 400 lines: nodes with bodies (If, Scan, Loop) are written in the scopes of the nodes around them, so that
both halves would share all private state.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Self, TypeVar

import onnx_ir as ir
from numpy.typing import NDArray

from posexport.graph.edits import claim
from posexport.graph.place import Place, shared_constant
from posexport.graph.queries import with_bodies
from posexport.graph.types import infer

_TYPES = {int: ir.AttributeType.INT, float: ir.AttributeType.FLOAT, list: ir.AttributeType.INTS}
_CONSTANTS = {int: "value_int", float: "value_float", list: "value_ints"}


@dataclass(frozen=True)
class Attribute:
    """An attribute of the function: ``type`` is int, float, or list (of integers)."""

    name: str
    type: type


Operand = ir.Value | Attribute | int | float | Sequence[int] | NDArray[Any] | None
#: the results of a branch: one value or several
Results = TypeVar("Results", ir.Value, tuple[ir.Value, ...])


class Callee(Protocol):
    """An operator that is a function, for `Builder.call`."""

    @property
    def name(self) -> str: ...


@dataclass
class _Scope:
    """A function's body, a branch or a loop's body: its nodes, and what they compute."""

    nodes: list[ir.Node] = field(default_factory=list)
    known: dict[object, tuple[ir.Value, ...]] = field(default_factory=dict)


class Builder:
    """Writes nodes of a function, or of a graph: `at` a place in it, or collected for it (`take`).

    ``taken``: names that the graph's values have, for nodes that are collected.

    Attributes:
        opset: version of the standard operators.
        calls: operators called by `call`, by the name of their function, each with whether it is the ``whole`` one.
    """

    def __init__(self, opset: int, taken: Collection[str] = ()) -> None:
        self.opset = opset
        self.calls: dict[str, tuple[Any, bool]] = {}
        self._scopes = [_Scope()]
        self._names: set[str] = {*taken}
        self._place: Place | None = None
        self._domains: dict[str, int] = {"": opset}
        self._attributes: dict[str, None] = {}

    @classmethod
    def at(
        cls,
        node: ir.Node,
        *,
        after: bool = False,
        like: Sequence[ir.Node] = (),
        name: str = "",
        opset: int | None = None,
    ) -> Self:
        """Writes before ``node``, or ``after`` it, in its graph, in the order of the calls.

        Args:
            like: nodes with the metadata of the new ones (the modules that they were traced in), if not ``node``.
            name: begins the name of every value.
            opset: of the nodes of a function, which its graph does not have; constants are nodes there.
        """
        assert node.graph is not None
        before, behind = (None, node) if after else (node, None)
        return cls._placed(Place(node.graph, before, behind, like or (node,), name, opset is None), opset)

    @classmethod
    def behind(cls, graph: ir.Graph, value: ir.Value, **options: Any) -> Self:
        """Writes after the node that computes ``value``; at the start of ``graph`` for an input or a weight."""
        node = value.producer()
        return cls.at_start(graph, **options) if node is None else cls.at(node, after=True, **options)

    @classmethod
    def at_start(
        cls, graph: ir.Graph, *, like: Sequence[ir.Node] = (), name: str = "", opset: int | None = None
    ) -> Self:
        """Writes at the start of ``graph``, after its constants, where only inputs are read."""
        start = next((node for node in graph if node.op_type != "Constant" or node.domain), None)
        return cls._placed(Place(graph, start, None, like, name, initializers=True), opset)

    @classmethod
    def _placed(cls, place: Place, opset: int | None = None) -> Self:
        builder = cls(opset or place.graph.opset_imports[""])
        builder._place = place
        return builder

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        """A standard operator with one output: ``g.Transpose(x, perm=[1, 0])``."""
        if not op_type[0].isupper():
            raise AttributeError(op_type)
        return partial(self.op, op_type)

    def op(
        self,
        op_type: str,
        *operands: Operand,
        domain: str = "",
        name: str = "",
        shape: ir.Shape | Sequence[int | str | None] | None = None,
        **attributes: Any,
    ) -> ir.Value:
        """An operator's only output.

        ``name``: what the value is called in the file. ``shape``: its sizes, where inference cannot know them.
        """
        (value,) = self.several(op_type, [name], *operands, domain=domain, **attributes)
        if shape is not None:
            value.shape = ir.Shape(shape)
        return value

    def several(
        self, op_type: str, names: Sequence[str], *operands: Operand, domain: str = "", **attributes: Any
    ) -> tuple[ir.Value, ...]:
        """The outputs of an operator, one for each of ``names`` ("" for any name)."""
        floats = (operand.dtype for operand in operands if isinstance(operand, ir.Value) and operand.dtype is not None)
        dtype = next((operand for operand in floats if operand.is_floating_point()), ir.DataType.FLOAT)
        inputs = tuple(self._value(operand, dtype) for operand in operands)
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        key = (domain, op_type, len(names), inputs, tuple((k, _hashable(v)) for k, v in sorted(attributes.items())))
        for scope in self._scopes:
            if key in scope.known:
                return scope.known[key]
        node = ir.node(
            op_type,
            inputs,
            {key: self._attribute(key, value) for key, value in attributes.items()},
            domain=domain,
            outputs=[ir.Value(name=self._name(name, op_type)) for name in names],
        )
        if domain:
            self._domains[domain] = 1
        return self._add(node, key)

    def call(self, operator: Callee, *operands: Operand, domain: str, whole: str = "", name: str = "") -> ir.Value:
        """The output of an operator's function; ``whole``: begins the name of its variant for whole chunks."""
        function = whole + operator.name
        self.calls[function] = (operator, bool(whole))
        return self.op(function, *operands, domain=domain, name=name)

    def attribute(self, name: str, kind: type) -> Attribute:
        """The function's attribute ``name``, as an operand or as another operator's attribute."""
        return Attribute(name, kind)

    def if_(
        self,
        condition: ir.Value,
        then: Callable[[], Results],
        orelse: Callable[[], Results],
        *,
        branches: tuple[str, str],
        name: str | Sequence[str],
        types: Sequence[ir.DataType] = (),
    ) -> Results:
        """What ``then`` or ``orelse`` returns, by a bool scalar; ``branches`` and ``name`` are for the file.

        ``types``: of the results, which a graph asks for and a function does not.
        """
        names = [name] if isinstance(name, str) else list(name)
        self._know_names()
        graphs: list[ir.Graph] = [
            self._graph(branch, names, build) for branch, build in zip(branches, (then, orelse), strict=True)
        ]
        values = [ir.Value(name=claim(name, self._names)) for name in names]
        for results in (values, *(list(graph.outputs) for graph in graphs)):
            for value, dtype in zip(results, types, strict=False):
                value.type = ir.TensorType(dtype)
        bodies = dict(zip(("then_branch", "else_branch"), graphs, strict=True))
        outputs: Any = self._add(ir.node("If", [condition], bodies, outputs=values))
        return outputs[0] if isinstance(name, str) else outputs  # type: ignore[no-any-return]  # as many as a branch's

    def scan(
        self, body: Callable[..., ir.Value], scanned: Mapping[str, ir.Value], *, body_name: str, name: str
    ) -> ir.Value:
        """Stacks what ``body`` returns for each slice along axis 0 of ``scanned``, by the slices' names."""
        self._know_names()
        slices = [ir.Value(name=claim(name, self._names)) for name in scanned]
        graph = self._graph(body_name, [name], lambda: body(*slices), slices)
        value = ir.Value(name=claim(name, self._names))
        attributes: dict[str, Any] = {"num_scan_inputs": len(slices), "body": graph}
        return self._add(ir.node("Scan", list(scanned.values()), attributes, outputs=[value]))[0]

    def scan_state(
        self,
        body: Callable[..., tuple[ir.Value, ir.Value]],
        start: ir.Value,
        scanned: Mapping[str, ir.Value],
        *,
        axis: int,
        body_name: str,
        names: tuple[str, str],
    ) -> tuple[ir.Value, ...]:
        """The final state, and the stacked outputs along ``axis``.

        ``body``: the next state and an output, from a state and the slices along ``axis`` of ``scanned``.
        """
        self._know_names()
        slices = [ir.Value(name=claim(name, self._names)) for name in ("state", *scanned)]
        graph = self._graph(body_name, [f"{name}_of_turn" for name in names], lambda: body(*slices), slices)
        values = [ir.Value(name=claim(name, self._names)) for name in names]
        attributes: dict[str, Any] = {
            "num_scan_inputs": len(scanned),
            "body": graph,
            "scan_input_axes": [axis] * len(scanned),
            "scan_output_axes": [axis],
        }
        return self._add(ir.node("Scan", [start, *scanned.values()], attributes, outputs=values))

    def loop(
        self,
        times: ir.Value,
        body: Callable[[ir.Value, ir.Value], ir.Value],
        start: ir.Value,
        state: ir.TypeProtocol,
        *,
        body_name: str,
        name: str,
    ) -> ir.Value:
        """The final state of a loop that begins with ``start``, of the type ``state``.

        ``body``: the next state from the number of the iteration and the state.
        """
        self._know_names()
        types = {
            f"iteration_of_{name}": ir.TensorType(ir.DataType.INT64),
            f"condition_of_{name}": ir.TensorType(ir.DataType.BOOL),
            f"{name}_so_far": state,
        }
        scalar = ir.Shape([])
        body_inputs = [ir.Value(name=claim(name, self._names), type=kind) for name, kind in types.items()]
        iteration, condition, so_far = body_inputs
        iteration.shape = condition.shape = scalar
        graph = self._graph(body_name, ["goes_on", name], lambda: (condition, body(iteration, so_far)), body_inputs)
        graph.outputs[0].type, graph.outputs[0].shape, graph.outputs[1].type = condition.type, scalar, state
        value = ir.Value(name=claim(name, self._names), type=state)
        return self._add(ir.node("Loop", [times, None, start], {"body": graph}, outputs=[value]))[0]

    def add(self, node: ir.Node) -> tuple[ir.Value, ...]:
        """Write a node made elsewhere; its outputs get unique names."""
        for output in node.outputs:
            output.name = self._name(output.name or "", node.op_type)
        if node.domain:
            self._domains[node.domain] = node.version or 1
        return self._add(node)

    def take(self) -> list[ir.Node]:
        """The nodes written since the last call, for the caller to insert in a graph."""
        (scope,) = self._scopes
        # the next nodes may be inserted before these
        self._scopes = [_Scope()]
        return scope.nodes

    def input(self, name: str) -> ir.Value:
        """Add an input to the function."""
        return ir.Value(name=claim(name, self._names))

    def function(
        self, domain: str, name: str, inputs: Sequence[ir.Value], outputs: Mapping[str, ir.Value]
    ) -> ir.Function:
        """The finished function; it has the attributes that its body refers to."""
        results = self._results(outputs, outputs.values())
        graph = _finished(ir.Graph(inputs, results, nodes=self._scopes.pop().nodes, opset_imports=self._domains))
        attributes = [ir.Attr(name, ir.AttributeType.UNDEFINED, None) for name in self._attributes]
        return ir.Function(domain, name, graph=graph, attributes=attributes)

    def size(self, x: ir.Value, axis: int) -> ir.Value:
        """The size along ``axis``, int64 [1]."""
        return self.Shape(x, start=axis) if axis == -1 else self.Shape(x, start=axis, end=axis + 1)

    def scalar(self, x: ir.Value) -> ir.Value:
        """Returns ``x``, of shape [1], as a scalar []."""
        return self.Squeeze(x, [0])

    def slice(self, x: ir.Value, start: Operand, end: Operand, axis: int, *, name: str = "") -> ir.Value:
        """``x`` from ``start`` to before ``end`` along ``axis``."""
        return self.Slice(x, start, end, [axis], name=name)

    def range(self, start: ir.Value, end: ir.Value, *, name: str = "") -> ir.Value:
        """Integers from ``start`` to before ``end``, int64 [1] both."""
        return self.Range(self.scalar(start), self.scalar(end), 1, name=name)

    def shape(self, *sizes: Operand) -> ir.Value:
        """A shape from parts of one axis or several."""
        return self.Concat(*sizes, axis=0)

    def _graph(
        self, branch: str, names: Sequence[str], build: Callable[[], Any], inputs: Sequence[ir.Value] = ()
    ) -> ir.Graph:
        self._scopes.append(_Scope())
        built = build()
        results = self._results([f"{name}_{branch}" for name in names], built if isinstance(built, tuple) else (built,))
        return _finished(ir.Graph(inputs, results, nodes=self._scopes.pop().nodes, name=branch))

    def _results(self, names: Any, values: Any) -> list[ir.Value]:
        """The innermost scope's outputs, with these names; a value of another scope through an Identity."""
        inside = {id(output) for node in self._scopes[-1].nodes for output in node.outputs}
        results: list[ir.Value] = []
        for name, value in zip(names, values, strict=True):
            if id(value) in inside and value not in results:
                results.append(value)
            else:
                results += self._add(ir.node("Identity", [value], num_outputs=1))
            if results[-1].name != name:
                results[-1].name = claim(name, self._names)
        return results

    def _value(self, operand: Operand, dtype: ir.DataType) -> ir.Value | None:
        """``operand`` as a value: Python numbers are constants, floats of the type ``dtype`` in a graph."""
        if operand is None or isinstance(operand, ir.Value):
            return operand
        if isinstance(operand, Attribute):
            name, kind = f"{operand.name}_value", operand.type
        elif self._place is not None and self._place.initializers:
            return shared_constant(self._place.graph, operand, dtype)
        else:
            kind = list if isinstance(operand, Sequence) else type(operand)
            values = operand if isinstance(operand, Sequence) else [operand]
            name = "c" + "".join(str(value) for value in values).replace("-", "n")
        constant: dict[str, Any] = {_CONSTANTS[kind]: operand}
        return self.op("Constant", name=name, **constant)

    def _name(self, name: str, op_type: str) -> str | None:
        """A name that no value has; None where the graph chooses one."""
        if self._place is not None and len(self._scopes) == 1:
            if not name and not self._place.name:
                return None
            self._know_names()
            name = "_".join(filter(None, [self._place.name, name or op_type.lower()]))
        return claim(name or op_type.lower(), self._names)

    def _know_names(self) -> None:
        """Read the names of the graph's values, the first time that a new one must differ from them."""
        if self._place is not None and not self._names:
            for graph in with_bodies(self._place.graph):
                values = (*graph.inputs, *graph.initializers.values(), *(x for node in graph for x in node.outputs))
                self._names.update(value.name or "" for value in values)

    def _attribute(self, name: str, value: Any) -> Any:
        if not isinstance(value, Attribute):
            return value
        self._attributes[value.name] = None
        return ir.RefAttr(name, value.name, _TYPES[value.type])

    def _add(self, node: ir.Node, key: object = None) -> tuple[ir.Value, ...]:
        outputs = tuple(node.outputs)
        if self._place is None or len(self._scopes) > 1:
            self._scopes[-1].nodes.append(node)
        else:
            if outputs[0].name:
                node.name = node.name or f"node_{outputs[0].name}"
            self._place.insert(node)
        if self._place is not None:
            infer(node, self.opset)
        if key is not None:
            self._scopes[-1].known[key] = outputs
        return outputs


def _finished(graph: ir.Graph) -> ir.Graph:
    """Drop the generated names of nodes, since the names of their values are more useful."""
    for node in graph:
        node.name = None
    return graph


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
