"""What a node of domain ``posexport`` computes, as a record that its attributes hold.

A traced graph has one type of node for each family (attention, its bias, rotation, relative position projection). Its
attributes beside those of its function say which one is meant; `posexport.export.functions` reads them, attaches a
function for each record and names the nodes for it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import onnx_ir as ir
from torch import Tensor

from posexport.ops.operator import DOMAIN, symbolic

#: begins the names of a record's attributes
_PREFIX = "spec_"


@dataclass(frozen=True)
class NodeSpec(ABC):
    """Base of the records; their fields are strings, integers and bools."""

    #: of the nodes in a traced graph
    op_type: ClassVar[str]

    @property
    @abstractmethod
    def name(self) -> str:
        """What its function is called in a finished graph, by what it computes."""

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
        """Names of the inputs with packed heads -> of the attributes with the shapes that split them."""
        return {}

    @property
    def split(self) -> Self:
        """The same with split heads."""
        return self

    @property
    def attributes(self) -> dict[str, Any]:
        """The record as attributes of a node, without fields that have their default."""
        changed = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        return {f"{_PREFIX}{name}": getattr(self, name) for name in changed}

    @classmethod
    def of(cls, node: ir.Node) -> Self | None:
        """The record of a node; None for one of another type."""
        if node.domain != DOMAIN or node.op_type != cls.op_type:
            return None
        stored = [field for field in fields(cls) if f"{_PREFIX}{field.name}" in node.attributes]
        return cls(**{field.name: node.attributes[f"{_PREFIX}{field.name}"].value for field in stored})

    def named_inputs(self, node: ir.Node) -> dict[str, ir.Value | None]:
        """The inputs of one of its nodes by name."""
        return dict(zip(self.inputs, node.inputs, strict=True))

    def node(self, inputs: Mapping[str, ir.Value | None], like: ir.Node, **attributes: Any) -> ir.Node:
        """A node of this record, with the name and the other attributes of ``like``; it is in no graph yet."""
        kept = {name: value for name, value in like.attributes.items() if not name.startswith(_PREFIX)}
        return ir.node(
            self.op_type,
            [inputs[name] for name in self.inputs],
            {**kept, **self.attributes, **attributes},
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
    """A node of ``spec`` in the graph being traced."""
    return symbolic(spec.op_type, tensors, like=like, shape=shape, **spec.attributes, **attributes)
