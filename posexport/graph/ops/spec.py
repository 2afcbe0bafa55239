"""The specification of a node of domain ``posexport``, as a record in its attributes.

A traced graph has one op_type for each family (attention, its bias, rotation, relative position projection). Attributes
with the prefix ``spec_`` select the variant; `posexport.graph.lowering.functions` reads them, attaches one function for
each distinct record and renames the nodes after it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import onnx_ir as ir

from posexport.graph.ops.operator import DOMAIN, symbolic
from posexport.graph.ops.tensor import Tensor

#: begins the names of a record's attributes
_PREFIX = "spec_"


@dataclass(frozen=True)
class NodeSpec(ABC):
    """Base of the records. Fields are strings, integers and bools."""

    #: op_type of the nodes in a traced graph
    op_type: ClassVar[str]

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the node's function in a finished graph, built from the fields."""

    @property
    @abstractmethod
    def inputs(self) -> list[str]:
        """Names of the node's inputs, in order."""

    @property
    @abstractmethod
    def outputs(self) -> list[str]:
        """Names of the node's outputs, in order."""

    @property
    def head_shapes(self) -> dict[str, str]:
        """Names of the inputs with packed heads, each with the name of the attribute that holds its split shape."""
        return {}

    @property
    def split(self) -> Self:
        """The same record with split heads."""
        return self

    @property
    def attributes(self) -> dict[str, Any]:
        """The record as attributes of a node; fields with their default are left out."""
        changed = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        return {f"{_PREFIX}{name}": getattr(self, name) for name in changed}

    @classmethod
    def of(cls, node: ir.Node) -> Self | None:
        """The record in a node's attributes; None for a node of another op_type."""
        if node.domain != DOMAIN or node.op_type != cls.op_type:
            return None
        stored = [field for field in fields(cls) if f"{_PREFIX}{field.name}" in node.attributes]
        return cls(**{field.name: node.attributes[f"{_PREFIX}{field.name}"].value for field in stored})

    def named_inputs(self, node: ir.Node) -> dict[str, ir.Value | None]:
        """The inputs of a node of this record, by name."""
        return dict(zip(self.inputs, node.inputs, strict=True))

    def node(self, inputs: Mapping[str, ir.Value | None], like: ir.Node, **attributes: Any) -> ir.Node:
        """A new node of this record, in no graph yet, with the name and the other attributes of ``like``."""
        preserved = {name: value for name, value in like.attributes.items() if not name.startswith(_PREFIX)}
        return ir.node(
            self.op_type,
            [inputs[name] for name in self.inputs],
            {**preserved, **self.attributes, **attributes},
            domain=DOMAIN,
            version=1,
            name=like.name,
            num_outputs=len(self.outputs),
        )


def emit(
    spec: NodeSpec,
    tensors: Sequence[Tensor | None],
    *,
    like: Tensor,
    shape: Sequence[int],
    **attributes: float | Sequence[int],
) -> Tensor:
    """Emit a node of ``spec`` into the graph that is being traced."""
    return symbolic(spec.op_type, tensors, like=like, shape=shape, **spec.attributes, **attributes)
