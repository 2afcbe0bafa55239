"""``SeamlessM4TFeatureExtractor``: kaldi's filter banks, normalised by mel bin, two frames side by side."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from posexport.audio import fbank
from posexport.audio.extractor import Arrays, Extractor, Sound, check, pad, too_short
from posexport.audio.mel import Float64s

#: kaldi reads samples of 16 bits
FULL_SCALE = 2**15


@dataclass(frozen=True, kw_only=True)
class SeamlessM4T(Extractor):
    """Of wav2vec2-bert.

    Attributes:
        feature_size: of padding alone; more than 1, as features have two axes.
        num_mel_bins: mel filters.
        stride: frames that make one row of features.
    """

    output: ClassVar[str] = "input_features"

    feature_size: int = 80
    num_mel_bins: int = 80
    stride: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.feature_size > 1, "feature_size", self.feature_size, "more than 1")
        check(self.stride > 1, "stride", self.stride, "2 or more")
        check(self.num_mel_bins > 0, "num_mel_bins", self.num_mel_bins, "1 or more")

    @property
    def shape(self) -> list[int | None]:
        return [None, self.num_mel_bins * self.stride]

    @functools.cached_property
    def _filters(self) -> Float64s:
        return fbank.filters(self.num_mel_bins, self.sampling_rate)

    def extract(self, sounds: Sequence[Sound]) -> Arrays:
        for number, sound in enumerate(sounds):
            # of one frame there is no variance
            if fbank.frames_of(len(sound)) < 2:
                raise too_short(number, len(sound), fbank.samples_of(2), self.sampling_rate)
        window, rows = fbank.povey(), []
        for sound in sounds:
            features = fbank.fbank(sound * FULL_SCALE, window, self._filters)
            rows.append((features - features.mean(0)) / np.sqrt(features.var(0, ddof=1) + 1e-7))
        frames = max(map(len, rows))
        frames += frames % 2  # transformers pads to a multiple of 2, whatever the stride
        values, mask = pad(rows, frames, self)
        whole = frames // self.stride
        values = values[:, : whole * self.stride].reshape(len(rows), whole, -1)
        arrays: Arrays = {self.output: values}
        if self.return_attention_mask:
            arrays["attention_mask"] = mask[:, 1 : whole * self.stride : self.stride]
        return arrays
