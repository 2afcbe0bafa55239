"""What is told about a full model, and the two ways in which its check ends without an answer of yes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posexport.errors import PosexportError
from posexport.proof.quantized.records import StoredError


class NotComparableError(PosexportError):
    """The graphs cannot be compared, right or wrong: a full model without a chain of layers, for example."""


class StructureError(StoredError):
    """A layer of the full model computes something else than the reduced model's layer of its kind."""


@dataclass(frozen=True)
class Stack:
    """The layers of an nn.ModuleList.

    Attributes:
        kinds: of each layer of the full model.
        kept: the full model's layers that the reduced model has, which numbers them 0, 1, 2, ...
    """

    kinds: Sequence[str]
    kept: Sequence[int]

    @property
    def reduced(self) -> "Stack":
        """The same stack in the reduced model."""
        return Stack([self.kinds[layer] for layer in self.kept], range(len(self.kept)))


Stacks = Mapping[str, Stack]


@dataclass(frozen=True)
class Place:
    """Where a parameter is.

    Attributes:
        stack: the path of its nn.ModuleList; empty where it belongs to no layer alone.
        layer: its number there, or -1.
        role: its name, without the number of its layer.
    """

    stack: str
    layer: int
    role: str


class Places:
    """Of all parameters of one model, by name.

    What several layers share, and what the first layer alone has (T5's relative attention bias), belongs to no layer.
    """

    def __init__(self, names: Mapping[str, Sequence[str]], stacks: Stacks, full: "Places | None" = None) -> None:
        """``names``: all names of a parameter by its first; ``full``: of the full model, for a reduced one."""
        self._stacks = stacks
        alone = {name: {self._split(alias) for alias in aliases} for name, aliases in names.items()}
        layers: dict[tuple[str, str], set[int]] = {}
        for split in alone.values():
            for each in split:
                layers.setdefault((each.stack, each.role), set()).add(each.layer)
        self.first_only: set[tuple[str, str]] = (
            full.first_only
            if full is not None
            else {key for key, numbers in layers.items() if numbers == {0} and len(stacks.get(key[0], _NONE).kinds) > 1}
        )
        self._places = {name: self._place(split) for name, split in alone.items()}

    def __getitem__(self, name: str) -> Place:
        return self._places[name]

    def _split(self, name: str) -> Place:
        for path in sorted(self._stacks, key=len):
            number, _, rest = name.removeprefix(f"{path}.").partition(".")
            if name.startswith(f"{path}.") and number.isdecimal():
                return Place(path, int(number), f"{path}.#.{rest}")
        return Place("", -1, name)

    def _place(self, split: set[Place]) -> Place:
        first = min(split, key=lambda place: (place.stack, place.role, place.layer))
        layers = {(place.stack, place.layer) for place in split}
        if len(layers) > 1 or (first.stack, first.role) in self.first_only:
            return Place("", -1, first.role)
        return first


_NONE = Stack((), ())
