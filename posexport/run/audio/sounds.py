"""Sounds of every kind as samples: mono, float32, at the rate that the model takes. soundfile and soxr.

Files are read and resampled as ``librosa.load`` and transformers' ``load_audio`` do: channels are averaged, soxr's HQ
quality. Arrays have the form that ``transformers.pipeline`` takes: [samples] or [channels, samples].
"""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.options.several import several
from posexport.base.system.extras import require
from posexport.errors import PosexportError

Sound = NDArray[np.float32]
#: an array of samples has the first axis for channels, as transformers' pipelines have it
MOST_CHANNELS = 2


def as_list(audio: Any) -> list[Any]:
    """One sound or several, as a list; a list of numbers is one sound."""
    sounds = several(audio)
    return [audio] if sounds is None else [sounds] if sounds and are_numbers(sounds) else sounds


def are_numbers(values: Sequence[Any]) -> bool:
    """Whether a list is the samples of one sound."""
    return all(isinstance(value, (int, float, np.number)) for value in values)


def read_all(audio: Any, rate: int, sampling_rate: int | None = None, *, first: int = 0) -> list[Sound]:
    """One sound or several as samples [n] at ``rate``; ``sampling_rate``: of arrays, None: they have ``rate`` already.

    Messages number the sounds from ``first`` on. Raises PosexportError for an input that is no sound, an empty one,
    samples that are not finite, and another rate than a file or a dictionary says.
    """
    if sampling_rate is not None:
        _check_rate(sampling_rate, "sampling_rate")
    sounds = as_list(audio)
    if not sounds:
        raise PosexportError("got no sounds; give at least one")
    named = [(f"sound {number}", sound) for number, sound in enumerate(sounds, first)]
    return [_checked(read(sound, name, rate, sampling_rate), name) for name, sound in named]


def read(sound: Any, name: str, rate: int, sampling_rate: int | None) -> Sound:
    """Samples [n] of one sound, which messages call ``name``."""
    if isinstance(sound, Mapping):
        return _of_mapping(sound, name, rate, sampling_rate)
    if isinstance(sound, (str, Path, bytes, bytearray, memoryview)) or hasattr(sound, "read"):
        samples, file_rate = _decoded(sound, name)
        if sampling_rate is not None and sampling_rate != file_rate:
            raise PosexportError(
                f"{name} has {file_rate} samples of a second as its file says, and sampling_rate says {sampling_rate}; "
                "leave sampling_rate out for files, or repair the file's header"
            )
        return resampled(samples, file_rate, rate)
    return resampled(_of_array(sound, name), sampling_rate or rate, rate)


def resampled(samples: Sound, rate: int, target_rate: int) -> Sound:
    """Samples [n] at another rate, [ceil(n * target_rate / rate)], by soxr in its HQ quality."""
    if rate == target_rate:
        return samples
    require("resampling", "soxr")
    import soxr

    count = math.ceil(len(samples) * target_rate / rate)
    values = np.asarray(soxr.resample(samples, rate, target_rate, quality="soxr_hq"), np.float32)
    return np.pad(values, (0, max(0, count - len(values))))[:count]


def _of_mapping(sound: Mapping[str, Any], name: str, rate: int, sampling_rate: int | None) -> Sound:
    """Samples [n] of a dictionary as transformers' pipelines and the datasets library have it."""
    for key in ("raw", "array"):
        if sound.get(key) is not None:
            if (stated := sound.get("sampling_rate")) is None:
                raise PosexportError(f"{name} is a dictionary with {key} and without sampling_rate; give both")
            _check_rate(stated, f"sampling_rate of {name}")
            if sampling_rate not in (None, stated):
                raise PosexportError(
                    f"{name} says sampling_rate {stated}, and the option sampling_rate says {sampling_rate}; give one"
                )
            return read(sound[key], name, rate, stated)
    for key in ("bytes", "path"):
        if sound.get(key) is not None:
            return read(sound[key], name, rate, sampling_rate)
    keys = ", ".join(map(str, sound)) or "no keys"
    raise PosexportError(f"{name} is a dictionary with {keys}; it needs raw or array, and sampling_rate")


def _decoded(sound: Any, name: str) -> tuple[Sound, int]:
    """Samples and rate of a file, by soundfile."""
    if isinstance(sound, str) and sound.startswith(("http://", "https://")):
        raise PosexportError(f"{name} is an address, {sound:.80}; posexport downloads no sounds: give a file")
    require("reading sound files", "soundfile")
    import soundfile

    source, label = (sound, name)
    if isinstance(sound, (str, Path)):
        path = Path(sound)
        if not path.is_file():
            raise PosexportError(f"{name}: there is no file {path}; give a path of a WAV or FLAC file")
        source, label = str(path), f"{name} ({path.name})"
    elif isinstance(sound, (bytes, bytearray, memoryview)):
        source = io.BytesIO(sound)
    try:
        with soundfile.SoundFile(source) as file:
            file_rate, samples = int(file.samplerate), file.read(dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError, TypeError, ValueError) as err:
        known = ", ".join(form for form in ("WAV", "FLAC", "OGG", "MP3") if form in soundfile.available_formats())
        raise PosexportError(f"{label} is no sound that soundfile reads ({err}); it reads {known} and others") from err
    return mono(np.ascontiguousarray(samples.T)), file_rate


def _of_array(sound: Any, name: str) -> Sound:
    """Samples [n] of an array [n] or [channels, n]; integers count as parts of their full scale."""
    try:
        array = np.asarray(sound)
    except (ValueError, TypeError, RuntimeError) as err:
        raise PosexportError(f"{name} is no array of samples: {err}") from err
    if array.dtype.kind == "f":
        samples = array.astype(np.float32)
    elif array.dtype in (np.int16, np.int32):
        samples = (array / (np.iinfo(array.dtype).max + 1.0)).astype(np.float32)
    elif array.dtype == np.uint8:
        samples = ((array - 128.0) / 128).astype(np.float32)
    else:
        kind = type(sound).__name__ if array.dtype == object else str(array.dtype)
        raise PosexportError(f"{name} holds {kind}; samples are float32, float64, int16, int32 or uint8")
    if samples.ndim not in (1, 2):
        raise PosexportError(f"{name} has shape {list(array.shape)}; samples are [samples] or [channels, samples]")
    if samples.ndim == 2 and len(samples) > MOST_CHANNELS:
        raise PosexportError(
            f"{name} has shape {list(array.shape)}, {len(samples)} channels; it takes [samples] or [channels, samples] "
            "of 1 or 2 channels: transpose [samples, channels], and give several sounds as a list"
        )
    return mono(samples) if samples.ndim == 2 else samples


def mono(samples: Sound) -> Sound:
    """The mean [n] of channels [channels, n]."""
    mean: Sound = samples.mean(axis=0) if len(samples) > 1 else samples[0]
    return mean


def _checked(samples: Sound, name: str) -> Sound:
    if not len(samples):
        raise PosexportError(f"{name} is empty; give at least one sample")
    if not np.isfinite(samples).all():
        place = int(np.argmin(np.isfinite(samples)))
        raise PosexportError(f"{name} holds {samples[place]} at sample {place}; samples are finite numbers")
    return samples


def _check_rate(rate: Any, name: str) -> None:
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)) or rate < 1:
        raise PosexportError(f"{name} is {rate!r}; give the samples of a second as a whole number, such as 16000")
