"""A definition without weights, and where each of its weights comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from posexport.definition.definition import Definition


@dataclass(frozen=True)
class Constant:
    """A formula's numbers, and how far a file's may be from them (its format's rounding): relative and absolute."""

    values: Tensor
    rtol: float = 0.0
    atol: float = 0.0


@dataclass(frozen=True)
class Origin:
    """Where a parameter comes from: any of ``names`` (all that are there must be equal), times ``factor``.

    ``row``: name and shape of a table whose row 0 is added to every row of the parameter. ``part``: the parameter is
    the rows of this one of the ``parts`` (query, key, value) which each of so many heads has in the tensor; one head
    where all of a part stand together. ``width``: it is the rows of so many parts, from that one on (the queries of a
    group of heads that share a key and a value). ``shape``: the tensor's, where it is not the parameter's although it
    holds the same numbers in the same order. ``transposed``: the tensor, all its axes but the first taken as one, is
    turned before anything else. ``gain``: any of the names of the norms [1, .., 1, last axis] that the tensor's slices
    along the last axis are brought to (weight normalisation, Salimans and Kingma, arXiv:1602.07868, as released for
    convolutions). No names at all, or ``optional`` and none of them there: zeros.
    """

    names: tuple[str, ...]
    factor: float = 1.0
    row: tuple[str, list[int]] | None = None
    part: tuple[int, int] | None = None
    parts: int = 3
    width: int = 1
    shape: tuple[int, ...] | None = None
    transposed: bool = False
    gain: tuple[str, ...] = ()
    optional: bool = False

    def stored_shape(self, parameter: list[int]) -> list[int]:
        """The shape that the tensor must have for a parameter of this shape."""
        if self.shape is not None:
            return list(self.shape)
        whole = parameter if self.part is None else [parameter[0] // self.width * self.parts, *parameter[1:]]
        return whole[::-1] if self.transposed else whole


@dataclass(frozen=True)
class Plan:
    """A definition on the meta device and the origin of each of its parameters, by name."""

    model: Definition
    origins: dict[str, Origin]
    #: the longest input where the family says it, not the encoding
    longest: int | None = None
    #: tensors that a file may have and that must hold these numbers
    constants: Mapping[str, Constant] = field(default_factory=dict)
    #: tensors that a file may have and that do not matter at inference
    unread: tuple[str, ...] = ()
    #: what names of tensors begin with that this task does not use, each with what it is, as `OwnFamily.beside`
    beside: Mapping[str, str | None] = field(default_factory=dict)
    #: keys of config.json that decide which tensors there are
    decides: tuple[str, ...] = ()


def origins_of(
    model: nn.Module, stems: Mapping[str, str], special: Mapping[str, Origin] | None = None
) -> dict[str, Origin]:
    """The origin of every parameter: ``special``, or by ``stems``, from our modules to the checkpoint's.

    A ``table`` of ours is a ``weight`` there.
    """
    special = special or {}
    found: dict[str, Origin] = {}
    for name, _ in model.named_parameters():
        module, _, leaf = name.rpartition(".")
        stored = "weight" if leaf == "table" else leaf
        found[name] = special[name] if name in special else Origin((f"{stems[module]}.{stored}",))
    return found
