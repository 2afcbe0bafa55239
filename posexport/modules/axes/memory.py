"""Keeps the sizes of a proof within a bound of memory: the scores of attention grow with the square of an image."""

import math
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from posexport.base.spec import BATCH
from posexport.base.system.machine import readable

Sizes = dict[str, int]
#: float64 tensors as large as the largest in memory together; the most rows of a point
_TOGETHER, _ROWS = 4, 3
#: scores of fused attention in memory together where they are computed, bytes of each
_UNFUSED = 2 * 4
#: bytes that a call or point of a chosen size may need, and one of the example's size
CHOSEN, _EXAMPLES = 1 << 29, 4 << 30


class Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What calls make: ``elements`` of the largest tensor, or of fused attention's scores; ``tokens`` of scores.

    ``scores``: of the largest softmax alone. ``bytes``: of what was in memory together, at most.
    """

    supports_higher_order_operators = True  # flex_attention is one

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements, self.scores, self.tokens = 1, 1, 1
        self.bytes = self._held = 0
        #: storages that are still in memory
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.name()
        if "scaled_dot_product" in name:
            queries, keys = args[:2]
            self._scores(fused := (*queries.shape[:-1], keys.shape[-2]))
            self.bytes = max(self.bytes, self._held + _UNFUSED * math.prod(fused))
        elif name.startswith("aten::_softmax") and output.dim() > 1:
            self._scores(output.shape)
        elif isinstance(output, Tensor):
            self.elements = max(self.elements, output.numel())
        for leaf in (output,) if isinstance(output, Tensor) else tree_leaves(output):
            if isinstance(leaf, Tensor):
                self._hold(leaf)
        return output

    def _hold(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided:  # sparse ones have no storage
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()  # noqa: SLF001 (the id of what views share)
        if key in self._storages:
            return

        def freed(_: object) -> None:
            del self._storages[key]
            self._held -= size

        self._storages[key] = weakref.ref(storage, freed)
        self._held += size
        self.bytes = max(self.bytes, self._held)

    def _scores(self, shape: Sequence[int]) -> None:
        self.scores = max(self.scores, math.prod(shape))
        self.elements = max(self.elements, self.scores)
        self.tokens = max(self.tokens, min(shape[-2:]))


@dataclass(frozen=True)
class Growth:
    """The elements by row of the largest tensors of a call, each as a power of its inputs' sizes, from two calls.

    ``largest``: elements and power, of any tensor and of scores, which outgrow the features of small images.
    """

    axes: tuple[str, ...]
    inputs: int
    largest: tuple[tuple[float, float], ...]

    @staticmethod
    def of(run: Callable[[Sizes], Any], first: Sizes, second: Sizes, axes: Collection[str]) -> "Growth":
        """From calls of ``run`` at two sizes, which differ in ``axes``."""
        (a, at_first), (b, at_second) = ((_inputs(sizes, axes), _elements(run, sizes)) for sizes in (first, second))
        powers = [
            1.0 if a == b else math.log(later / before) / math.log(b / a)
            for before, later in zip(at_first, at_second, strict=True)
        ]
        return Growth(
            tuple(axes), b, tuple(zip(at_second, (min(max(power, 0.0), 2.0) for power in powers), strict=True))
        )

    def bytes_at(self, sizes: Sizes) -> int:
        """About what a point of these sizes needs."""
        times = _inputs(sizes, self.axes) / self.inputs
        return int(8 * _TOGETHER * _ROWS * max(elements * times**power for elements, power in self.largest))


def times_larger(run: Callable[[Sizes], Any], sizes: Sizes) -> float:
    """How many times as large an axis may be in trial calls: scores grow with the square."""
    with Made() as made:
        run(sizes)
    return max(1.0, math.sqrt(CHOSEN / max(made.bytes, 1)))


def _inputs(sizes: Sizes, axes: Collection[str]) -> int:
    return math.prod(sizes[axis] for axis in axes)


def _elements(run: Callable[[Sizes], Any], sizes: Sizes) -> tuple[float, float]:
    """By row, those of the largest tensor and of the largest scores."""
    with Made() as made:
        run(sizes)
    rows = sizes.get(BATCH, 1)
    return made.elements / rows, made.scores / rows


def within_memory(proof_sizes: Sequence[Sizes], example: Sizes, growth: Growth) -> tuple[list[Sizes], list[str]]:
    """The sizes of which a point needs little memory, the smallest at least; a remark where the example's does not."""
    least = min(proof_sizes, key=lambda sizes: _inputs(sizes, growth.axes))
    bounds = {True: _EXAMPLES, False: CHOSEN}
    kept = [sizes for sizes in proof_sizes if sizes is least or growth.bytes_at(sizes) <= bounds[sizes == example]]
    if example in kept or example not in proof_sizes:
        return kept, []
    shown = " and ".join(f"{axis} {size}" for axis, size in example.items())
    return kept, [
        f"the proof has no call with the example's {shown}, which would need about "
        f"{readable(growth.bytes_at(example))} of memory; give --length for other sizes"
    ]
