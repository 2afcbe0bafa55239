"""What a way of computing a node of domain ``posexport`` must say about itself.

A lowering gives the node of one kind its body: a function of domain ``posexport`` whose body uses standard operators,
the position operators and, where the target allows, ONNX Runtime's own. All bodies have the same inputs, so that any
can stand for any other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import onnx
import onnx.parser
import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.lowering.heads import around, pack_heads, split_heads
from posexport.ops.operator import DOMAIN, OPERATORS, WHOLE
from posexport.targets.target import Target


class Kind(Protocol):
    """A type of nodes: its name, its inputs, outputs and attributes in order."""

    @property
    def name(self) -> str:
        """The ``op_type`` of its nodes."""
        ...

    @property
    def inputs(self) -> Sequence[str]:
        """Names of the inputs, in order."""
        ...

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the outputs, in order."""
        ...

    @property
    def attributes(self) -> Sequence[str]:
        """Names of the attributes."""
        ...

    @property
    def heads_of(self) -> Mapping[str, str]:
        """Inputs whose heads stand side by side -> attributes with the shapes that take them apart."""
        ...

    @property
    def apart(self) -> Any:
        """The kind whose inputs have their heads apart."""
        ...


K = TypeVar("K", bound=Kind, contravariant=True)


class Lowering(Protocol[K]):
    """One way.

    Attributes:
        name: what ``--lowering`` takes and the manifest records.
        cuts: it takes some queries at a time, and does without a bias of all pairs where that is too much to hold.
        joins: its body takes heads side by side as they are; for others they are taken apart.
        beaten: where it applies and another one is taken, why.
    """

    name: str
    cuts: bool
    joins: bool
    beaten: str

    def domains(self, kind: K, target: Target) -> Mapping[str, int]:
        """The versions of domains that the body uses, beside the standard one and ours."""
        ...

    def refusal(self, kind: K, target: Target) -> str | None:
        """Why this way does not apply to ``kind`` in a graph for ``target``; None when it does."""
        ...

    def body(self, kind: K, target: Target) -> str:
        """The statements of the function, in the ONNX text format, from the inputs to the outputs."""
        ...


Inputs = Mapping[str, ir.Value]
Outputs = ir.Value | tuple[ir.Value, ...]


@dataclass(frozen=True)
class Body:
    """A function, and the operators that it calls, by the name of their function: each with whether it is whole."""

    function: ir.Function
    calls: dict[str, tuple[Any, bool]]


def function(lowering: Any, kind: K, target: Target) -> Body:
    """The function that gives nodes of ``kind`` their meaning, for a graph for ``target``."""
    if hasattr(lowering, "build"):
        g = Builder(target.opset)
        inputs = {name: g.input(name) for name in kind.inputs}
        outputs = _outputs(g, lowering, kind, inputs, target)
        named = dict(zip(kind.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))
        return Body(g.function(DOMAIN, kind.name, list(inputs.values()), named), g.calls)
    proto = _parsed(lowering, kind, target)
    made = ir.serde.deserialize_function(proto)
    calls = {}
    for node in ir.traversal.RecursiveGraphIterator(made.graph):
        if node.domain == DOMAIN:
            whole = node.op_type.startswith(WHOLE)
            calls[node.op_type] = (OPERATORS[node.op_type.removeprefix(WHOLE)], whole)
    return Body(made, calls)


def _outputs(g: Builder, lowering: Any, kind: Any, inputs: Inputs, target: Target) -> Outputs:
    """What the lowering's body returns; packed heads are split around one that does not accept them."""
    if not kind.heads_of or lowering.joins:
        outputs: Outputs = lowering.build(g, kind, inputs, target)
        return outputs
    split = {name: split_heads(g, inputs[name], g.attribute(shape, list)) for name, shape in kind.heads_of.items()}
    returned = lowering.build(g, kind.apart, {**inputs, **split}, target)
    if isinstance(returned, tuple):
        return pack_heads(g, returned[0]), *returned[1:]
    return pack_heads(g, returned)


def _parsed(lowering: Any, kind: Any, target: Target) -> onnx.FunctionProto:
    domains = {"": target.opset, DOMAIN: 1, **lowering.domains(kind, target)}
    imports = ", ".join(f'"{domain}" : {version}' for domain, version in domains.items())
    if kind.heads_of and not lowering.joins:
        statements = "\n".join(around(kind.heads_of, [lowering.body(kind.apart, target)], kind.outputs[0]))
    else:
        statements = lowering.body(kind, target)
    attributes = f" <{', '.join(kind.attributes)}>" if kind.attributes else ""
    return onnx.parser.parse_function(
        f'<opset_import: [{imports}], domain: "{DOMAIN}">\n'
        f"{kind.name}{attributes} ({', '.join(kind.inputs)}) => ({', '.join(kind.outputs)})\n"
        f"{{\n{statements}\n}}"
    )
