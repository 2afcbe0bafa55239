"""What a model promises, and how two of its runs are compared. Imports no torch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from posexport.parity.criterion import Array, Measured, RealTokens, measure
from posexport.parity.grid.inputs import kept, tokens_of
from posexport.parity.grid.point import GridPoint
from posexport.parity.proof import Judge, Run
from posexport.spec import (
    ENCODER_SEQUENCE,
    FRAMES,
    SEQUENCE,
    TOKENS,
    TOTAL,
    Axis,
    InputSpec,
    LengthContract,
    OutputSpec,
    Promises,
    masked_axis,
)

#: which tokens of an output are real
RealTokensOf = Callable[[OutputSpec], RealTokens]
#: the outputs of two runs compared, one after the other
Changes = Iterator[tuple[OutputSpec, Measured]]
#: RoBERTa counts its tokens by their ids, whatever the mask says: by definition this need not hold
CONTENT = "padding contents change nothing"


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What the model promises, and how to run it.

    Where ``exact`` is given (for a user's module), PyTorch's run in float64 shows whether it has positions.
    ``definition`` is PyTorch's run in the graph's precision: every pair of inputs goes through it too. ``wide``: the
    tolerance of 16 bits, or of rounded activations, may be too wide to show positions that are there.
    """

    run: Run
    definition: Run
    inputs: Sequence[InputSpec]
    outputs: Sequence[OutputSpec]
    limits: LengthContract
    promises: Promises
    judge: Judge
    exact: Run | None = None
    wide: bool = False

    @property
    def masked(self) -> set[Axis]:
        """The sequences for which a mask says which of their tokens are padding."""
        axes = {axis for spec in self.inputs if (axis := masked_axis(spec)) is not None}
        # with an empty past all tokens are new
        return axes | ({SEQUENCE} if TOTAL in axes else set())


def compared(
    promise: Promise, y: Sequence[Array], reference: Sequence[Array], real: RealTokensOf, by_token: bool
) -> Changes:
    """``by_token``: leave out outputs without a length axis."""
    for spec, got, expected in zip(promise.outputs, y, reference, strict=True):
        if set(TOKENS) & set(spec.axes) or not by_token:
            yield spec, measure(got, expected, spec.axes, real(spec))


def all_tokens(spec: OutputSpec) -> None:
    """Nothing is padded."""
    del spec


def real_tokens(point: GridPoint, spec: OutputSpec) -> RealTokens:
    """Which tokens of an output are real."""
    if ENCODER_SEQUENCE in spec.axes:
        return kept(point, ENCODER_SEQUENCE)
    if FRAMES in spec.axes and not point.convolutions:
        return None  # which frames of a user's module are padding is not known
    return np.ones((point.batch, 1), dtype=np.bool_) if point.image else tokens_of(kept(point), point.convolutions)


def take_tokens(array: Array, axes: Sequence[Axis], index: Sequence[int], far: Sequence[int] | None = None) -> Array:
    """Some tokens of ``array``; ``far``: of the sequence that is attended to (None: all)."""
    for place, axis in enumerate(axes):
        chosen = far if axis == ENCODER_SEQUENCE else index if axis in TOKENS else None
        array = array if chosen is None else np.take(array, np.asarray(chosen), axis=place)
    return array


def take(array: Array, axes: Sequence[Axis], axis: str, index: Sequence[int]) -> Array:
    return np.take(array, np.asarray(index), axis=list(axes).index(axis)) if axis in axes else array
