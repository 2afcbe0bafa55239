"""From a checkpoint's tensors to a definition's parameters: steps for a tensor, and the definition without weights.

`Origin.transforms` is a chain of them. Each works on float32 tensors and says both shapes, so that a checkpoint is
compared with the definition before anything is read.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from posexport.models.definition import Definition

Shape = Sequence[int]
#: the first tensor of the file that has one of these names, in float32
Read = Callable[[tuple[str, ...]], Tensor]


class Transform(ABC):
    """A step from a stored tensor towards a parameter."""

    def shape(self, output: Shape) -> Shape:
        """The shape of the input for an output of this shape."""
        return output

    def also_reads(self, output: Shape) -> dict[tuple[str, ...], Shape]:
        """Other tensors of the file that the step reads: the names that each may have, and its shape."""
        return {}

    @abstractmethod
    def apply(self, value: Tensor, output: Shape, read: Read) -> Tensor:
        """The output; ``value`` may be changed in place. ``read`` gives the tensors of `also_reads`."""


@dataclass(frozen=True)
class Reshape(Transform):
    """The same elements in the same order, stored in the shape ``stored``."""

    stored: tuple[int, ...]

    def shape(self, output: Shape) -> Shape:
        return self.stored

    def apply(self, value: Tensor, output: Shape, read: Read) -> Tensor:
        return value.reshape(tuple(output))


@dataclass(frozen=True)
class Transpose(Transform):
    """A linear projection stored as [inputs, outputs], as transformers' ``Conv1D`` does; biases stay as they are."""

    def shape(self, output: Shape) -> Shape:
        return output[::-1]

    def apply(self, value: Tensor, output: Shape, read: Read) -> Tensor:
        return value.mT if value.dim() == 2 else value


@dataclass(frozen=True)
class RowDifference(Transform):
    """One row of a table of ``rows`` less another (None: less nothing), as a table of one row."""

    first: int
    second: int | None
    rows: int

    def shape(self, output: Shape) -> Shape:
        return [self.rows, *output[1:]]

    def apply(self, value: Tensor, output: Shape, read: Read) -> Tensor:
        return value[self.first, None] - (0 if self.second is None else value[self.second, None])


@dataclass(frozen=True)
class SplitFused(Transform):
    """Slices the rows of one projection out of a fused one, for example Q out of QKV.

    The fused tensor has ``groups`` groups of ``parts`` equal parts; of every group the ``width`` parts from ``part`` on
    are selected. One group: all of Q, then all of K, then all of V. As many groups as KV heads: head by head.
    """

    part: int
    parts: int = 3
    groups: int = 1
    width: int = 1

    def shape(self, output: Shape) -> Shape:
        return [output[0] // self.width * self.parts, *output[1:]]

    def apply(self, value: Tensor, output: Shape, read: Read) -> Tensor:
        parts: Tensor = value.unflatten(0, (self.groups, self.parts, -1))  # type: ignore[no-untyped-call]
        return parts[:, self.part : self.part + self.width].flatten(0, 2)


@dataclass(frozen=True)
class Scale(Transform):
    """Multiplies the tensor by ``factor``."""

    factor: float

    def apply(self, value: Tensor, output: Shape, read: Read) -> Tensor:
        return value.mul_(self.factor)


@dataclass(frozen=True)
class AddRow(Transform):
    """Row 0 of the table ``name``, which has ``rows`` rows, added to every row."""

    name: str
    rows: int

    def also_reads(self, output: Shape) -> dict[tuple[str, ...], Shape]:
        return {(self.name,): [self.rows, output[-1]]}

    def apply(self, value: Tensor, output: Shape, read: Read) -> Tensor:
        return value.add_(read((self.name,))[0])


@dataclass(frozen=True)
class WeightNorm(Transform):
    """Slices along the last axis brought to the norms [1, .., 1, last axis] of the tensor that has one of ``norms``.

    Salimans and Kingma, "Weight Normalization" (arXiv:1602.07868), as released for convolutions.
    """

    norms: tuple[str, ...]

    def also_reads(self, output: Shape) -> dict[tuple[str, ...], Shape]:
        return {self.norms: [*[1] * (len(output) - 1), output[-1]]}

    def apply(self, value: Tensor, output: Shape, read: Read) -> Tensor:
        wide = value.double()
        return value.copy_(wide * (read(self.norms).double() / wide.flatten(0, -2).norm(dim=0)))


@dataclass(frozen=True)
class Constant:
    """A formula's values, and how far a file's may be from them (its format's rounding): relative and absolute."""

    values: Tensor
    rtol: float = 0.0
    atol: float = 0.0


@dataclass(frozen=True)
class Origin:
    """The tensor with any of ``names`` (all that the file has must be equal), changed by ``transforms`` in turn.

    In the tables of families names may be modules' names, to which a parameter's last name is added (`below`).
    No names at all, or ``optional`` and none of them in the file: zeros.
    """

    names: tuple[str, ...]
    transforms: tuple[Transform, ...] = ()
    optional: bool = False

    def shapes(self, parameter: Shape) -> list[Shape]:
        """For a parameter of this shape: the shape of the tensor, then of the result of each transform."""
        shapes = [parameter]
        for transform in reversed(self.transforms):
            shapes.insert(0, transform.shape(shapes[0]))
        return shapes

    def then(self, *transforms: Transform) -> "Origin":
        return replace(self, transforms=(*self.transforms, *transforms))

    def renamed(self, new: Callable[[str], str]) -> "Origin":
        """Returns the same origin under other names."""
        return replace(self, names=tuple(new(name) for name in self.names))

    def below(self, leaf: str) -> "Origin":
        """The origin of the parameter ``leaf`` of the named modules."""
        return self.renamed(lambda module: f"{module}.{leaf}")


#: of a parameter that checkpoints do not have
ZEROS = Origin(())
#: modules or parameters of a definition to the checkpoint's names
NameMap = Mapping[str, str | Origin]


@dataclass(frozen=True)
class Plan:
    """A definition on the meta device and the origin of each of its parameters, by name."""

    model: Definition
    origins: dict[str, Origin]
    #: the longest input where the family says it, not the encoding
    longest: int | None = None
    #: tensors that a file may have and that must hold these values
    constants: Mapping[str, Constant] = field(default_factory=dict)
    #: tensors that a file may have and that do not matter at inference
    unread: tuple[str, ...] = ()
    #: prefixes of tensors that this task does not use, each with a description (see ``Family.beside``)
    beside: Mapping[str, str | None] = field(default_factory=dict)
    #: keys of config.json that decide which tensors there are
    decides: tuple[str, ...] = ()


def origin(stored: str | Origin) -> Origin:
    """The origin for an entry of a `NameMap`."""
    return Origin((stored,)) if isinstance(stored, str) else stored


def in_layers(count: int, here: str, there: str, names: NameMap) -> dict[str, Origin]:
    """``names`` of a layer, for every layer: below ``here``, and in the file after ``there``.

    ``{i}`` in the latter or in a name is replaced by the layer's number.
    """

    def numbered(i: int) -> Callable[[str], str]:
        return lambda name: (there + name).format(i=i)

    return {
        f"{here}.{i}.{path}": origin(stored).renamed(numbered(i))
        for i in range(count)
        for path, stored in names.items()
    }


def origins_of(model: nn.Module, modules: NameMap, parameters: NameMap | None = None) -> dict[str, Origin]:
    """The origin of every parameter: from ``parameters``, else below its module's in ``modules``.

    A ``table`` of a definition is a ``weight`` of the checkpoint.
    """
    origins: dict[str, Origin] = {}
    for name, _ in model.named_parameters():
        module, _, leaf = name.rpartition(".")
        if parameters is not None and name in parameters:
            origins[name] = origin(parameters[name])
        else:
            origins[name] = origin(modules[module]).below("weight" if leaf == "table" else leaf)
    return origins
