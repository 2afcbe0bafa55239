"""``WhisperFeatureExtractor``: log-mel spectrograms of 30 seconds."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from posexport.audio.extractor import Arrays, Extractor, Sound, check, pad
from posexport.audio.mel import Float64s, log_mel, slaney_filters

#: hertz; of every sampling rate
HIGHEST = 8000.0
FLOOR = 1e-10


@dataclass(frozen=True, kw_only=True)
class Whisper(Extractor):
    """Of whisper.

    Attributes:
        feature_size: mel filters.
        hop_length: samples from one frame to the next.
        chunk_length: seconds of the model's input; longer sounds are cut, shorter ones padded.
        n_fft: samples of a frame.
        dither: noise that transformers adds to the samples; none is added here.
    """

    output: ClassVar[str] = "input_features"

    return_attention_mask: bool = False
    feature_size: int = 80
    hop_length: int = 160
    chunk_length: int = 30
    n_fft: int = 400
    dither: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("feature_size", "hop_length", "chunk_length", "n_fft"):
            check(getattr(self, key) > 0, key, getattr(self, key), "a number above 0")

    @property
    def samples(self) -> int:
        """The number of samples of the model's input."""
        return self.chunk_length * self.sampling_rate

    @property
    def frames(self) -> int:
        """The number of frames of the model's input."""
        return self.samples // self.hop_length

    @property
    def shape(self) -> list[int | None]:
        return [self.feature_size, self.frames]

    def remarks(self) -> list[str]:
        if not self.dither:
            return []
        return [
            f"preprocessor_config.json says dither = {self.dither}: transformers adds noise of that size to each "
            "sound, posexport adds none, so that the same sound has the same answer"
        ]

    @functools.cached_property
    def _filters(self) -> Float64s:
        return slaney_filters(1 + self.n_fft // 2, self.feature_size, self.sampling_rate, HIGHEST)

    def extract(self, sounds: Sequence[Sound]) -> Arrays:
        values, mask = pad([sound[: self.samples] for sound in sounds], self.samples, self)
        arrays: Arrays = {self.output: np.stack([self.spectrogram(samples_T) for samples_T in values])}
        if self.return_attention_mask:
            # of every frame its first sample; a frame that is not whole has no feature
            arrays["attention_mask"] = mask[:, :: self.hop_length][:, : self.frames]
        return arrays

    def spectrogram(self, samples: Sound) -> NDArray[np.float32]:
        """Log-mel spectrogram [mel filters, frames] of any length, 8 powers of 10 deep, scaled to about -1 to 1."""
        half = self.n_fft // 2
        window = np.hanning(self.n_fft + 1)[:-1]
        features = log_mel(
            np.pad(samples, half, mode="reflect"),
            window,
            self._filters,
            hop=self.hop_length,
            fft_length=self.n_fft,
            floor=FLOOR,
            log="log10",
        )[:, :-1]
        scaled: NDArray[np.float32] = (np.maximum(features, features.max() - 8.0) + 4.0) / 4.0
        return scaled
