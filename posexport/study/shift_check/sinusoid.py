"""The shift matrix of sinusoids: ``T(k) PE[t] = PE[t + k]``, a 2 x 2 rotation for every pair of channels.

Vaswani et al., "Attention Is All You Need" (arXiv:1706.03762), section 3.5: "for any fixed offset k, PE[pos + k] can be
represented as a linear function of PE[pos]". T(k) is computed from the vectors of positions 0 and k, and must then
move every other position: that is what makes it independent of t. Shape letters: T positions, C channels, P pairs.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from posexport.encodings.positions import Grid, Positions
from posexport.sources.encoding_alone import EncodingAlone
from posexport.study.shift_check.records import Check, positions_from

Array = NDArray[np.float64]
PROPERTY = "T(k) PE[t] = PE[t + k]"
SHIFTS = (1, 2, 7, 64, 500)
LENGTH = 1024


def position_vectors(subject: EncodingAlone, length: int, at: Positions | None = None) -> tuple[Array, str]:
    """The output of `embed` for equal tokens, [T, C'] for the first positions, in float64, and a description of it.

    ``at``: other positions than the first ``length``.
    Tokens of zeros show an added or joined vector (the joined channels only); an encoding that multiplies gets tokens
    of ones.
    """
    layer = subject.layer.double()
    at = positions_from(0, length) if at is None else at
    for value, what in ((0.0, "added to the token's embedding"), (1.0, "made of a token's embedding of ones")):
        x_1TC = torch.full((1, length, subject.hidden), value, dtype=torch.float64)
        out_TC = layer.embed(x_1TC, at)[0].numpy()
        if layer.added_width and not np.any(out_TC[:, : subject.hidden] - value):
            out_TC, what = out_TC[:, subject.hidden :], what.replace("added to", "put beside")
        if np.any(out_TC - value):
            break
    return out_TC, what


@dataclass(frozen=True)
class Shift:
    """Sinusoids ``vectors_TC`` with, for every pair, which channel is the sine and which the cosine.

    ``layout``: how the pairs are stored. With an odd number of channels the last sine has no cosine, and no pair.
    """

    vectors_TC: Array
    layout: str
    sine_P: NDArray[np.int64]
    cosine_P: NDArray[np.int64]

    @property
    def order(self) -> NDArray[np.int64]:
        """The channels pair by pair, each sine before its cosine: the order in which T(k) is block-diagonal."""
        return np.stack([self.sine_P, self.cosine_P], axis=1).ravel()

    def matrix(self, k: int) -> Array:
        """T(k), [2P, 2P], in `order`; read off positions 0 and k."""
        start_P, moved_P = self._phasors()[[0, k]]
        turn_P = moved_P * start_P.conj()
        size_P = np.abs(turn_P)
        turn_P = np.divide(turn_P, size_P, out=np.ones_like(turn_P), where=size_P > 0)
        out = np.zeros((2 * len(turn_P), 2 * len(turn_P)))
        for pair, turn in enumerate(turn_P):
            block = slice(2 * pair, 2 * pair + 2)
            out[block, block] = [[turn.real, turn.imag], [-turn.imag, turn.real]]
        return out

    def residual(self, k: int) -> Array:
        """``T(k) PE[t] - PE[t + k]`` for every t, [T - k, 2P], in `order`."""
        paired_TC = self.vectors_TC[:, self.order]
        return np.asarray(paired_TC[: len(paired_TC) - k] @ self.matrix(k).T - paired_TC[k:])

    def _phasors(self) -> NDArray[np.complex128]:
        return self.vectors_TC[:, self.cosine_P] + 1j * self.vectors_TC[:, self.sine_P]


def claims_sinusoid(subject: EncodingAlone) -> bool:
    """Whether its vectors are fixed: a formula of the position that is added or joined, with nothing learned."""
    return subject.has("embed") and not list(subject.layer.parameters())


def shift_of(vectors_TC: Array) -> Shift:
    """The vectors in pairs: sines and cosines in turn or by halves, whichever leaves the smaller residual."""
    channels = vectors_TC.shape[1]
    pairs = np.arange(channels // 2)
    shifts = [
        Shift(vectors_TC, "interleaved", 2 * pairs, 2 * pairs + 1),
        Shift(vectors_TC, "half", pairs, pairs + (channels + 1) // 2),
    ]
    k = min(1, len(vectors_TC) - 1)
    return min(shifts, key=lambda shift: np.abs(shift.residual(k)).max(initial=0))


def _walks(subject: EncodingAlone, length: int) -> list[Array]:
    """The vectors of the first positions; of an image those down the first column and along the first row.

    Of these each half of the channels by itself: one coordinate has the one, one the other.
    """
    if subject.layer.axes == 1:
        return [position_vectors(subject, length)[0]]
    step_T = torch.arange(length)
    walks = []
    for axes_2T in (torch.stack([step_T, 0 * step_T]), torch.stack([0 * step_T, step_T])):
        at = Positions(step_T[None], step_T, axes_2T[:, None], Grid(length, length))
        walks += np.array_split(position_vectors(subject, length, at)[0], 2, axis=1)
    return walks


def check(subject: EncodingAlone) -> Check:
    """The largest ``|T(k) PE[t] - PE[t + k]|`` over the shifts, all t and all channels; sinusoids are at most 1."""
    if not subject.has("embed"):
        return Check(claim=PROPERTY, figure=None, detail="it adds nothing to the embeddings")
    if not claims_sinusoid(subject):
        return Check(claim=PROPERTY, figure=None, detail="what it adds is learned, no sinusoid")
    length = min(LENGTH, subject.layer.limit or LENGTH)
    shifts = [k for k in SHIFTS if k < length]
    walks = [shift_of(vectors_TC) for vectors_TC in _walks(subject, length)]
    channels, paired = (sum(n) for n in zip(*((s.vectors_TC.shape[1], 2 * len(s.sine_P)) for s in walks), strict=True))
    if not paired or not shifts:
        return Check(claim=PROPERTY, figure=None, detail="one channel or one position has no rotation")
    odd = "" if paired == channels else "; the last sine has no cosine and is left out"
    return Check(
        claim=PROPERTY,
        figure=float(np.max([np.abs(shift.residual(k)).max(initial=0) for shift in walks for k in shifts])),
        # an image has them on both walks
        detail=f"{paired // 2 // subject.layer.axes} rotations read off t = 0, k = {', '.join(map(str, shifts))}, "
        f"t + k up to {length - 1}{odd}",
    )
