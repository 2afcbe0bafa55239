"""What calls of a module show of the axes of its inputs: `posexport.modules.axes.classify` finds it."""

from dataclasses import dataclass, field

from torch import Tensor

from posexport.modules.axes.example_calls import TensorAxis

#: parts of the way from the least sizes of some axes to those of the example
SHARES = 8


@dataclass(kw_only=True)
class Varying:
    """A group of axes that vary together.

    Attributes:
        members: the axes, by input and number.
        size: the example's size, grown where that is 1.
        step: all sizes are multiples of it.
        least: the smallest size that the module accepts.
        ends: the example's size is the largest.
        outputs: the axes of outputs that changed in the same way.
    """

    members: tuple[TensorAxis, ...]
    size: int
    step: int = 1
    least: int = 1
    ends: bool = False
    outputs: frozenset[TensorAxis] = frozenset()

    def between(self, share: int) -> int:
        """The least size, or a multiple of the step so many of `SHARES` nearer to the example's."""
        steps = (self.size - self.least) // self.step
        return self.least + -(-steps * share // SHARES) * self.step


@dataclass(kw_only=True)
class Classified:
    """The result.

    Attributes:
        varying: the groups of axes that vary.
        fixed: every axis that does not vary, with the reason.
        columns: fixed axes indexed by constants in the module, which therefore need their size.
        of_few: fixed axes that the module takes in other sizes near the example's too.
        base: shapes of the inputs that the module accepts.
        outputs: the outputs for ``base``.
    """

    varying: list[Varying] = field(default_factory=list)
    fixed: dict[TensorAxis, str] = field(default_factory=dict)
    columns: set[TensorAxis] = field(default_factory=set)
    of_few: list[TensorAxis] = field(default_factory=list)
    base: dict[str, tuple[int, ...]]
    outputs: dict[str, Tensor]

    def of(self, tensor_axis: TensorAxis) -> Varying | None:
        """The group that an axis belongs to; None where it has none."""
        return next((group for group in self.varying if tensor_axis in group.members), None)
