"""Base class of feature extractors: a record of settings that turns sounds into arrays."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError

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
