"""Steps from a tensor of a checkpoint to a parameter of a definition.

`Origin.transforms` is a chain of them. Each works on float32 tensors and says both shapes, so that a checkpoint is
compared with the definition before anything is read.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

Shape = Sequence[int]
#: the first tensor of the file that has one of these names, in float32
Read = Callable[[tuple[str, ...]], Tensor]


class Transform(ABC):
    """A step from a stored tensor towards a parameter."""

    def shape(self, output: Shape) -> Shape:
        """The shape of the input for an output of this shape."""
        return output

    def others(self, output: Shape) -> dict[tuple[str, ...], Shape]:
        """Other tensors of the file that the step reads: the names that each may have, and its shape."""
        return {}

    @abstractmethod
    def apply(self, value: Tensor, output: Shape, read: Read) -> Tensor:
        """The output; ``value`` may be changed in place. ``read`` gives the tensors of `others`."""


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

    def others(self, output: Shape) -> dict[tuple[str, ...], Shape]:
        return {(self.name,): [self.rows, output[-1]]}

    def apply(self, value: Tensor, output: Shape, read: Read) -> Tensor:
        return value.add_(read((self.name,))[0])


@dataclass(frozen=True)
class WeightNorm(Transform):
    """Slices along the last axis brought to the norms [1, .., 1, last axis] of the tensor that has one of ``norms``.

    Salimans and Kingma, "Weight Normalization" (arXiv:1602.07868), as released for convolutions.
    """

    norms: tuple[str, ...]

    def others(self, output: Shape) -> dict[tuple[str, ...], Shape]:
        return {self.norms: [*[1] * (len(output) - 1), output[-1]]}

    def apply(self, value: Tensor, output: Shape, read: Read) -> Tensor:
        wide = value.double()
        return value.copy_(wide * (read(self.norms).double() / wide.flatten(0, -2).norm(dim=0)))
