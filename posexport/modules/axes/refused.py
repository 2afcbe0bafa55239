"""What is known of axes where a module refuses sizes that were drawn, and takes its example's.

Sizes of two inputs may depend on one another, as of rows with and without a label, or few be taken, as of skips between
strides that fit. The axis that must be larger has a least size then; one that must be smaller keeps the example's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from posexport.base.sizes import multiple
from posexport.base.spec import BATCH, InputSpec
from posexport.modules.axes.classified import Varying
from posexport.modules.drawn_calls import DrawnCalls, Sizes
from posexport.modules.many_frames import example_sizes
from posexport.sources.load_options import Refused


@dataclass(frozen=True)
class Refusals:
    """Calls of a module at sizes that it refused, with the example ``tensors`` and ``groups`` of axes."""

    argument: str
    module: nn.Module
    inputs: list[InputSpec]
    tensors: Mapping[str, Tensor]
    groups: Mapping[str, Varying]

    def __call__(self, sizes: Sizes, keep: str = "") -> Refused | None:
        """What to change of axes so that ``sizes`` are accepted; None: the values are refused, or no single axis helps.

        ``keep``: an axis that is not fixed.
        """
        calls = DrawnCalls(self.argument, self.module, self.inputs)
        of_example = {
            axis: size
            for axis, size in example_sizes(calls, self.tensors).items()
            if not axis.endswith(BATCH) and sizes[axis] != size and not (axis == keep and size < sizes[axis])
        }
        if not of_example or not (reason := calls.failure(sizes)):
            return None
        # axes to be made smaller first: a least size is one for a size of the other axis alone
        for axis in sorted(of_example, key=lambda axis: sizes[axis] < of_example[axis]):
            example = of_example[axis]
            if calls.failure({**sizes, axis: example}):
                continue
            if sizes[axis] > example:
                remark = f"{axis} has the example's size in the bundle, {example}: {reason}"
                return Refused(fixed=self._places(axis), remarks={axis: remark})
            least = self._least(calls, sizes, axis, example)
            return Refused(least={axis: least}, remarks={axis: f"{axis} is at least {least}: {reason}"})
        return None

    def _places(self, axis: str) -> frozenset[tuple[str, int]]:
        return frozenset((spec.name, n) for spec in self.inputs for n, other in enumerate(spec.axes) if other == axis)

    def _least(self, calls: DrawnCalls, sizes: Sizes, axis: str, accepted: int) -> int:
        """The smallest size of an axis that is accepted, by bisection."""
        step, low, high = self.groups[axis].step if axis in self.groups else 1, sizes[axis], accepted
        while low < (middle := multiple((low + high) // 2, step)) < high:
            low, high = (middle, high) if calls.failure({**sizes, axis: middle}) else (low, middle)
        return high
