"""The time of each of Whisper's tokens, by dynamic time warping of cross attention.

As transformers' ``_extract_token_timestamps`` computes it, after OpenAI's whisper/timing.py: weights are normalised
over the tokens, smoothed by a median over time and averaged over the heads; tokens then get times in order.

Shape letters: H heads, T tokens, S states of the encoder, of 0.02 seconds each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import OutputSpec
from posexport.errors import PosexportError
from posexport.run.whisper import INPUT_STRIDE, TIME_PRECISION

Float32s = NDArray[np.float32]
#: predecessors of a cell: the token before at the time before, the token before, the time before
_BOTH, _TOKEN, _TIME = 0, 1, 2


@dataclass(frozen=True)
class AlignmentHeads:
    """The heads of cross attention that follow the sound.

    Attributes:
        sources: for each head the bundle's output that has it, and its index there; None: it is the output's only one.
        filter_width: of the median over time.
    """

    sources: Sequence[tuple[str, int | None]]
    filter_width: int

    @classmethod
    def of(cls, generation: Mapping[str, Any], config: Mapping[str, Any], outputs: Sequence[OutputSpec]) -> Self:
        """The heads by ``alignment_heads`` of generation_config.json.

        Raises:
            PosexportError: it names none, or a bundle with ``outputs`` does not return them.
        """
        heads = generation.get("alignment_heads")
        if not heads:
            raise PosexportError(
                "return_timestamps='word' needs alignment_heads in generation_config.json, heads of cross attention "
                "that follow the sound, and this bundle's has none; give return_timestamps=True, or add them to the "
                "checkpoint and convert it again"
            )
        known = {spec.name for spec in outputs}
        sources: list[tuple[str, int | None]] = []
        for layer, head in heads:
            every, single = f"cross_attentions.{layer}", f"cross_attentions.{layer}.{head}"
            if not known & {every, single}:
                raise PosexportError(
                    f"return_timestamps='word' needs {single}, which this bundle does not return; convert the "
                    "checkpoint with --outputs cross_attentions"
                )
            sources.append((single, None) if single in known else (every, head))
        return cls(sources, int(config.get("median_filter_width", 7)))

    @property
    def outputs(self) -> list[str]:
        """Names of the bundle's outputs, each once."""
        return list(dict.fromkeys(name for name, _ in self.sources))

    def weights(self, values: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Probabilities of the only row in ``values`` of `outputs`, [H, T, S]."""
        return np.stack([values[name][0] if head is None else values[name][0, head] for name, head in self.sources])


def token_times(weights_HTS: Float32s, frames: int, filter_width: int) -> Float32s:
    """Seconds from the start of the window, [T], at which the path reaches each token.

    Args:
        weights_HTS: probabilities of the alignment heads for each token as the decoder's input.
        frames: length of the sound from the start of the window, in frames of the spectrogram; not above 0 in a window
            after the sound's end.
        filter_width: of the median, odd (``median_filter_width`` of config.json).
    """
    last = frames // INPUT_STRIDE
    # transformers cuts twice, which differs below 0 alone
    weights_HTS = weights_HTS[..., :last][..., :last].astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):  # a single token has no deviation
        weights_HTS = (weights_HTS - weights_HTS.mean(1, keepdims=True)) / weights_HTS.std(1, keepdims=True)
    smoothed_TS = np.stack([_median(weights_TS, filter_width) for weights_TS in weights_HTS]).mean(0)
    return (first_times(-smoothed_TS) * TIME_PRECISION).astype(np.float32)


def _median(x_TS: Float32s, width: int) -> Float32s:
    """The median of ``width`` neighbours in time, reflected at the ends; unchanged if that is not possible."""
    side = width // 2
    if x_TS.shape[1] <= side:
        return x_TS
    padded_TS = np.pad(x_TS, ((0, 0), (side, side)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded_TS, width, axis=1)
    median_TS: Float32s = np.partition(windows, side, axis=-1)[..., side]
    return median_TS


def first_times(cost_TS: NDArray[np.floating]) -> NDArray[np.int64]:
    """Dynamic time warping: for each token the first time of the cheapest path through all tokens and times in order.

    Examples:
        >>> first_times(np.array([[0.0, 1, 1, 1], [1, 0, 0, 1], [1, 1, 1, 0]])).tolist()
        [0, 1, 3]
    """
    tokens, times = cost_TS.shape
    # sums in float32 and comparisons in this order, as in transformers: equal paths have equal times
    total = np.full((tokens + 1, times + 1), np.inf, np.float32)
    total[0, 0] = 0
    origin = np.full(total.shape, _TOKEN, np.int8)
    origin[0] = _TIME
    for diagonal in range(2, tokens + times + 1):
        i = np.arange(max(1, diagonal - times), min(tokens, diagonal - 1) + 1)
        j = diagonal - i
        both, token, time = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        by_both, by_token = (both < token) & (both < time), (token < both) & (token < time)
        origin[i, j] = np.where(by_both, _BOTH, np.where(by_token, _TOKEN, _TIME))
        total[i, j] = cost_TS[i - 1, j - 1].astype(np.float64) + np.where(
            by_both, both, np.where(by_token, token, time)
        )
    first_T = np.zeros(tokens, np.int64)
    i, j = tokens, times
    while i > 0:
        first_T[i - 1] = j - 1
        step = origin[i, j]
        i, j = i - (step != _TIME), j - (step != _TOKEN)
    return first_T
