"""A bundle's sounds as its input arrays: read, resampled, and what its feature extractor makes of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posexport.base.spec import InputSpec
from posexport.errors import PosexportError
from posexport.run.audio.extractors import EXTRACTORS, Arrays, Extractor, Sound
from posexport.run.audio.settings import (
    CONFIG,
    PREPROCESSOR,
    PROCESSOR,
    extractor_of,
    settings_of,
    type_of,
    unsupported,
)
from posexport.run.audio.sounds import read_all
from posexport.run.bundle.manifest import Manifest

MASK = "attention_mask"


class AudioProcessor:
    """Sounds to arrays by input name, as the checkpoint's feature extractor makes them.

    Args:
        extractor: with its settings.
        inputs: of the bundle.
    """

    def __init__(self, extractor: Extractor, inputs: Sequence[InputSpec]) -> None:
        self.extractor = extractor
        self._masked = any(spec.name == MASK for spec in inputs)
        _check_fit(extractor, inputs)

    @property
    def sampling_rate(self) -> int:
        """Samples of a second that the model takes."""
        return self.extractor.sampling_rate

    def __call__(self, audio: Any, *, sampling_rate: int | None = None) -> Arrays:
        """Arrays for one sound or a list of them, which are padded to the longest.

        Args:
            audio: paths, bytes and open files of WAV, FLAC or whatever soundfile reads; arrays [samples] or
                [channels, samples] of real numbers, or of int16, int32 or uint8 at full scale; dictionaries with
                ``raw`` or ``array`` and ``sampling_rate``.
            sampling_rate: of arrays; None: the model's rate.

        Raises:
            PosexportError: a file that is no sound, one with another rate than ``sampling_rate``, an empty sound,
                samples that are not finite.
        """
        return self.extract(self.read(audio, sampling_rate))

    def read(self, audio: Any, sampling_rate: int | None = None, *, first: int = 0) -> list[Sound]:
        """Samples [n] of each sound at the model's rate, one channel. ``first``: its number in messages."""
        return read_all(audio, self.sampling_rate, sampling_rate, first=first)

    def extract(self, sounds: Sequence[Sound]) -> Arrays:
        """Arrays for samples [n] at the model's rate."""
        arrays = self.extractor.extract(sounds)
        if MASK in arrays and not self._masked:
            if not arrays[MASK].all():
                lengths = ", ".join(str(len(sound)) for sound in sounds)
                raise PosexportError(
                    f"this bundle takes no {MASK}, which tells samples from padding; sounds of {lengths} samples need "
                    "it: give them one by one, or in calls of one length"
                )
            del arrays[MASK]
        return arrays


def open_processor(directory: Path, manifest: Manifest) -> AudioProcessor:
    """The processor of the bundle in ``directory``.

    Raises PosexportError where the bundle takes no sound, has no preprocessor_config.json, or names an extractor that
    posexport does not have.
    """
    files = {name: directory / name for name in (CONFIG, PREPROCESSOR, PROCESSOR) if name in manifest.files}
    settings = settings_of(files)
    outputs = sorted({extractor.output for extractor in EXTRACTORS.values()})
    if not any(spec.name in outputs for spec in manifest.inputs):
        named = ", ".join(spec.name for spec in manifest.inputs if spec.role != "cache")
        raise PosexportError(f"this bundle is for {manifest.task} and takes {named}, no sound ({' or '.join(outputs)})")
    if settings is None:
        raise PosexportError(
            f"this bundle has no {PREPROCESSOR}, which says how sound is prepared; convert it again from a checkpoint "
            "that has one, or give arrays to Session.run"
        )
    name = type_of(settings, files)
    if name not in EXTRACTORS:
        raise PosexportError(unsupported(str(name)))
    return AudioProcessor(extractor_of(name, settings), manifest.inputs)


def _check_fit(extractor: Extractor, inputs: Sequence[InputSpec]) -> None:
    """That what the extractor gives is what the bundle takes."""
    spec = next((spec for spec in inputs if spec.name == extractor.output), None)
    if spec is None:
        taken = ", ".join(spec.name for spec in inputs if spec.role == "values")
        raise PosexportError(
            f"preprocessor_config.json makes {extractor.output}, and this bundle takes {taken}; the file is not "
            "that of this model: put the right one into the checkpoint and convert it again"
        )
    shape, taken_axes = extractor.shape, spec.axes[1:]
    fits = len(shape) == len(taken_axes) and all(
        size is None or isinstance(axis, str) or size == axis for size, axis in zip(shape, taken_axes, strict=True)
    )
    if not fits:
        sizes = ["any" if size is None else str(size) for size in shape]
        raise PosexportError(
            f"preprocessor_config.json makes {extractor.output} [batch, {', '.join(sizes)}], and this bundle takes "
            f"[{', '.join(map(str, spec.axes))}]; correct the file in the checkpoint and convert it again"
        )
