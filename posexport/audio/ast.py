"""``ASTFeatureExtractor``: kaldi's filter banks, cut or padded to a fixed number of frames."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from posexport.audio import fbank
from posexport.audio.extractor import Arrays, Extractor, Sound, check, too_short
from posexport.audio.mel import Float64s


@dataclass(frozen=True, kw_only=True)
class AudioSpectrogramTransformer(Extractor):
    """Of audio-spectrogram-transformer.

    Attributes:
        num_mel_bins: mel filters.
        max_length: frames of the model's input.
        do_normalize: subtract ``mean`` and divide by twice ``std``; padding too, as in transformers.
        mean: of the training set.
        std: of the training set.
    """

    output: ClassVar[str] = "input_values"

    return_attention_mask: bool = False
    num_mel_bins: int = 128
    max_length: int = 1024
    do_normalize: bool = True
    mean: float = -4.2677393
    std: float = 4.5689974

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.num_mel_bins > 0, "num_mel_bins", self.num_mel_bins, "1 or more")
        check(self.max_length > 0, "max_length", self.max_length, "1 or more")
        check(self.std != 0, "std", self.std, "another number")

    @property
    def shape(self) -> list[int | None]:
        return [self.max_length, self.num_mel_bins]

    @functools.cached_property
    def _filters(self) -> Float64s:
        return fbank.filters(self.num_mel_bins, self.sampling_rate)

    def extract(self, sounds: Sequence[Sound]) -> Arrays:
        for number, sound in enumerate(sounds):
            if fbank.frames_of(len(sound)) < 1:
                raise too_short(number, len(sound), fbank.samples_of(1), self.sampling_rate)
        values = np.zeros((len(sounds), self.max_length, self.num_mel_bins), np.float32)
        window = fbank.hann()
        for features_TM, sound in zip(values, sounds, strict=True):
            features = fbank.fbank(sound, window, self._filters)[: self.max_length]
            features_TM[: len(features)] = features
        if self.do_normalize:
            values = (values - self.mean) / (self.std * 2)
        return {self.output: values}
