"""The feature extractors of transformers: each a record of settings that turns sounds into arrays."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.audio import mel
from posexport.run.audio.mel import Float64s, log_mel, slaney_filters

Sound = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Extractor(ABC):
    """The fields are the keys of preprocessor_config.json that are followed, with transformers' defaults.

    Attributes:
        sampling_rate: samples of a second.
        padding_value: what padding holds.
        padding_side: ``right`` or ``left``.
        return_attention_mask: also return which samples or frames are padding.
    """

    #: name of the model's input
    output: ClassVar[str]

    sampling_rate: int = 16000
    padding_value: float = 0.0
    padding_side: str = "right"
    return_attention_mask: bool = True

    def __post_init__(self) -> None:
        check(self.sampling_rate > 0, "sampling_rate", self.sampling_rate, "a number of samples of a second")
        check(self.padding_side in ("right", "left"), "padding_side", self.padding_side, "right or left")

    @abstractmethod
    def extract(self, sounds: Sequence[Sound]) -> Arrays:
        """Arrays for sounds [n] at `sampling_rate`: `output` and, where padding is marked, ``attention_mask``."""

    @property
    @abstractmethod
    def shape(self) -> list[int | None]:
        """Sizes of the axes of `output` after the batch axis; None: as long as the sound."""

    def remarks(self) -> list[str]:
        """Sentences for what these settings ask for and `extract` does not do."""
        return []


def check(holds: bool, key: str, value: object, needed: str) -> None:
    """Raise PosexportError, naming the key of preprocessor_config.json, unless ``holds``."""
    if not holds:
        raise PosexportError(f"preprocessor_config.json says {key} = {value!r}; posexport needs {needed} there")


def pad(rows: Sequence[NDArray[np.float32]], length: int, extractor: Extractor) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows [n, ...] of different lengths as one array [B, length, ...], and the mask [B, length], 0 at padding."""
    padded = np.full((len(rows), length, *rows[0].shape[1:]), extractor.padding_value, np.float32)
    mask = np.zeros((len(rows), length), np.int64)
    for number, values in enumerate(rows):
        place = slice(0, len(values)) if extractor.padding_side == "right" else slice(length - len(values), length)
        padded[number, place] = values
        mask[number, place] = 1
    return padded, mask


def too_short(number: int, samples: int, needed: int, rate: int) -> PosexportError:
    """A sound of fewer samples than a frame."""
    return PosexportError(
        f"sound {number} has {samples} samples at {rate} Hz, and this bundle's feature extractor needs {needed} or more"
    )


@dataclass(frozen=True, kw_only=True)
class Wav2Vec2(Extractor):
    """Of wav2vec2, HuBERT, WavLM and their like.

    Attributes:
        do_normalize: mean 0 and variance 1 of each sound; without a mask, padding counts, as in transformers.
    """

    output: ClassVar[str] = "input_values"

    return_attention_mask: bool = False
    do_normalize: bool = True

    @property
    def shape(self) -> list[int | None]:
        return [None]

    def extract(self, sounds: Sequence[Sound]) -> Arrays:
        values, mask = pad(sounds, max(map(len, sounds)), self)
        if self.do_normalize:
            counted = mask.sum(1) if self.return_attention_mask else np.full(len(mask), mask.shape[1])
            for samples_T, count in zip(values, counted, strict=True):
                # the first ones also where padding is on the left: transformers does so
                samples_T[:] = (samples_T - samples_T[:count].mean()) / np.sqrt(samples_T[:count].var() + 1e-7)
                samples_T[count:] = self.padding_value
        return {self.output: values} | ({"attention_mask": mask} if self.return_attention_mask else {})


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
        return mel.filters(self.num_mel_bins, self.sampling_rate)

    def extract(self, sounds: Sequence[Sound]) -> Arrays:
        for number, sound in enumerate(sounds):
            if mel.frames_of(len(sound)) < 1:
                raise too_short(number, len(sound), mel.samples_of(1), self.sampling_rate)
        values = np.zeros((len(sounds), self.max_length, self.num_mel_bins), np.float32)
        window = mel.hann()
        for features_TM, sound in zip(values, sounds, strict=True):
            features = mel.fbank(sound, window, self._filters)[: self.max_length]
            features_TM[: len(features)] = features
        if self.do_normalize:
            values = (values - self.mean) / (self.std * 2)
        return {self.output: values}


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
        return mel.filters(self.num_mel_bins, self.sampling_rate)

    def extract(self, sounds: Sequence[Sound]) -> Arrays:
        for number, sound in enumerate(sounds):
            # of one frame there is no variance
            if mel.frames_of(len(sound)) < 2:
                raise too_short(number, len(sound), mel.samples_of(2), self.sampling_rate)
        window, rows = mel.povey(), []
        for sound in sounds:
            features = mel.fbank(sound * FULL_SCALE, window, self._filters)
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


EXTRACTORS: dict[str, type[Extractor]] = {
    "ASTFeatureExtractor": AudioSpectrogramTransformer,
    "SeamlessM4TFeatureExtractor": SeamlessM4T,
    "Wav2Vec2FeatureExtractor": Wav2Vec2,
    "WhisperFeatureExtractor": Whisper,
}
#: extractors where preprocessor_config.json names none, by ``model_type``, as ``AutoFeatureExtractor`` knows
BY_MODEL_TYPE = {
    "audio-spectrogram-transformer": "ASTFeatureExtractor",
    "data2vec-audio": "Wav2Vec2FeatureExtractor",
    "hubert": "Wav2Vec2FeatureExtractor",
    "moonshine": "Wav2Vec2FeatureExtractor",
    "sew": "Wav2Vec2FeatureExtractor",
    "sew-d": "Wav2Vec2FeatureExtractor",
    "unispeech": "Wav2Vec2FeatureExtractor",
    "unispeech-sat": "Wav2Vec2FeatureExtractor",
    "wav2vec2": "Wav2Vec2FeatureExtractor",
    "wav2vec2-bert": "Wav2Vec2FeatureExtractor",
    "wav2vec2-conformer": "Wav2Vec2FeatureExtractor",
    "wavlm": "Wav2Vec2FeatureExtractor",
    "whisper": "WhisperFeatureExtractor",
}
