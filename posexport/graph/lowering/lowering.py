"""A lowering: one way to compute nodes of domain ``posexport``.

A lowering writes the body of the function of one `NodeSpec`, in standard operators, the position operators and, where
the target allows, operators of com.microsoft. All bodies of a record have the same inputs and outputs, so that they
are interchangeable.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.builder import Attribute, Builder
from posexport.graph.ops.operator import DOMAIN
from posexport.graph.ops.spec import NodeSpec


def split_heads(g: Builder, x: ir.Value, shape: Attribute) -> ir.Value:
    """[B, T, H D] -> [B, H, T, D], by an attribute with the shape [0, 0, H, -1]."""
    return g.Transpose(g.Reshape(x, shape), perm=[0, 2, 1, 3], name=f"{x.name}_split")


def pack_heads(g: Builder, x: ir.Value) -> ir.Value:
    """Reshapes split heads to packed heads: [B, H, T, D] -> [B, T, H D]. Adds a Transpose and a Reshape."""
    return g.Reshape(g.Transpose(x, perm=[0, 2, 1, 3]), [0, 0, -1], name=f"{x.name}_packed")


S = TypeVar("S", bound=NodeSpec, contravariant=True)
Inputs = Mapping[str, ir.Value]
Outputs = ir.Value | tuple[ir.Value, ...]


class Lowering(ABC, Generic[S]):
    """One way.

    Attributes:
        name: what ``--lowering`` accepts and the manifest records.
        tiles_queries: it computes tiles of queries, and needs no bias of all pairs where that is large.
        accepts_packed_heads: its body takes packed heads as they are; around others they are split.
        why_not_preferred: where it applies and another one is chosen, why.
        family: of a lowering that a package adds, the family of nodes (`posexport.graph.lowering.plan.FAMILIES`) that
            it computes; empty for posexport's lowerings, which their family lists.
    """

    name: str
    tiles_queries = False
    accepts_packed_heads = False
    why_not_preferred = ""
    family = ""

    def refusal(self, spec: S, target: Target) -> str | None:
        """Why it does not apply to ``spec`` in a graph for ``target``; None where it does."""
        return None

    @abstractmethod
    def build(self, g: Builder, spec: S, x: Inputs, target: Target) -> Outputs:
        """Write the body: from the inputs ``x`` by name to the outputs in order."""


@dataclass(frozen=True)
class Body:
    """A function, and the operators that it calls, by the name of their function: each with whether it is whole."""

    function: ir.Function
    calls: dict[str, tuple[Any, bool]]


def function(lowering: Lowering[S], spec: S, target: Target, name: str = "") -> Body:
    """The function that gives nodes of ``spec`` their meaning, in a graph for ``target``."""
    g = Builder(target.opset)
    x = {name: g.input(name) for name in spec.inputs}
    results = _results(g, lowering, spec, x, target)
    outputs = dict(zip(spec.outputs, results if isinstance(results, tuple) else (results,), strict=True))
    return Body(g.function(DOMAIN, name or spec.name, list(x.values()), outputs), g.calls)


def _results(g: Builder, lowering: Lowering[S], spec: S, x: Inputs, target: Target) -> Outputs:
    """What the body returns; heads are split and packed around one that does not accept them packed."""
    if lowering.accepts_packed_heads or not spec.head_shapes:
        return lowering.build(g, spec, x, target)
    split = {name: split_heads(g, x[name], g.attribute(shape, list)) for name, shape in spec.head_shapes.items()}
    results = lowering.build(g, spec.split, {**x, **split}, target)
    return (pack_heads(g, results[0]), *results[1:]) if isinstance(results, tuple) else pack_heads(g, results)
