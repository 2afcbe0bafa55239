"""Sound: features of each extractor, files at other rates, and what transformers' pipelines answer."""

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ci.answers.case import Case

PART = "sound"
RATE = 16000
#: samples, none of them a multiple of a frame
LENGTHS = (4001, 6543, 2777)
#: the classes with settings that small features come out of; every key that is followed has another value once
EXTRACTORS: dict[str, tuple[str, dict[str, Any]]] = {
    "wav2vec2": ("Wav2Vec2FeatureExtractor", {}),
    "wav2vec2-mask": ("Wav2Vec2FeatureExtractor", {"return_attention_mask": True}),
    "wav2vec2-left": ("Wav2Vec2FeatureExtractor", {"padding_side": "left", "return_attention_mask": True}),
    "wav2vec2-value": ("Wav2Vec2FeatureExtractor", {"padding_value": 0.5, "return_attention_mask": True}),
    "wav2vec2-raw": ("Wav2Vec2FeatureExtractor", {"do_normalize": False, "padding_value": 0.25}),
    "seamless": ("SeamlessM4TFeatureExtractor", {}),
    "seamless-stride": ("SeamlessM4TFeatureExtractor", {"stride": 3, "num_mel_bins": 23, "padding_value": 1.5}),
    "seamless-8k": ("SeamlessM4TFeatureExtractor", {"sampling_rate": 8000, "num_mel_bins": 20}),
    "whisper": ("WhisperFeatureExtractor", {"chunk_length": 1}),
    "whisper-other": (
        "WhisperFeatureExtractor",
        {"chunk_length": 1, "feature_size": 31, "n_fft": 500, "hop_length": 250, "padding_value": 0.125},
    ),
    "ast": ("ASTFeatureExtractor", {"max_length": 31, "num_mel_bins": 40}),
    "ast-other": (
        "ASTFeatureExtractor",
        {"max_length": 17, "num_mel_bins": 24, "mean": 1.5, "std": 0.75, "sampling_rate": 8000},
    ),
    "ast-raw": ("ASTFeatureExtractor", {"max_length": 23, "num_mel_bins": 24, "do_normalize": False}),
}
#: of features, every so many elements are kept
STEP = 5
#: within what transformers' NumPy and PyTorch paths of whisper differ; all others are equal to the last bit
WHISPER = 5e-5


def sound(samples: int, rate: int = RATE, seed: int = 0) -> NDArray[np.float32]:
    """A chirp, a low sine and noise, [samples]."""
    t = np.arange(samples) / rate
    noise = np.random.default_rng(seed).standard_normal(samples)
    chirp = 0.3 * np.sin(2 * np.pi * (200 + 30 * seed) * t * (1 + 2 * t))
    return (chirp + 0.2 * np.sin(2 * np.pi * 61 * t) + 0.02 * noise).astype(np.float32)


def sounds(rate: int = RATE) -> list[NDArray[np.float32]]:
    """Of different lengths; the last one ends in silence, where floors of logarithms count."""
    drawn = [sound(samples, rate, seed) for seed, samples in enumerate(LENGTHS)]
    drawn[-1][1200:] = 0
    return drawn


def encoded(samples: NDArray[Any], rate: int, form: str, subtype: str) -> bytes:
    """A file of samples [n] or [n, channels]."""
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=subtype)
    return file.getvalue()


def files() -> dict[str, bytes]:
    """Files in several formats and rates, one of them stereo."""
    stereo = np.stack([sound(8003, 44100, 3), sound(8003, 44100, 4)], axis=1)
    return {
        "16k.wav": encoded(sound(3001), RATE, "WAV", "PCM_16"),
        "8k.wav": encoded(sound(2003, 8000, 2), 8000, "WAV", "FLOAT"),
        "44k1-stereo.flac": encoded(stereo, 44100, "FLAC", "PCM_24"),
        "48k-8bit.wav": encoded(sound(5007, 48000, 5), 48000, "WAV", "PCM_U8"),
    }


def library_features(name: str, settings: dict[str, Any], batch: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """What transformers' class makes of a batch, padded to the longest as its processors do."""
    import transformers

    extractor = getattr(transformers, name)(**settings)
    padded = {} if name in ("WhisperFeatureExtractor", "ASTFeatureExtractor") else {"padding": True}
    made = extractor(batch, sampling_rate=extractor.sampling_rate, return_tensors="np", **padded)
    return {key: np.asarray(value) for key, value in made.items()}


def our_features(name: str, settings: dict[str, Any], batch: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    from posexport.run.audio.settings import extractor_of

    return extractor_of(name, settings).extract(batch)


def largest_difference(ours: Mapping[str, NDArray[Any]], theirs: Mapping[str, NDArray[Any]]) -> float:
    """Over all arrays; infinite where names or shapes differ."""
    if set(ours) != set(theirs) or any(ours[key].shape != theirs[key].shape for key in ours):
        return float("inf")
    return max(float(np.abs(ours[key].astype(np.float64) - theirs[key]).max()) for key in ours)


def tolerance(name: str) -> float:
    return WHISPER if name == "WhisperFeatureExtractor" else 0.0


def cases(work: Path) -> Iterator[Case]:
    from transformers import __version__

    library = f"transformers {__version__}"
    for title, (name, settings) in EXTRACTORS.items():
        for batch in (sounds(), sounds()[1:2]):
            ours, theirs = (ask(name, settings, batch) for ask in (our_features, library_features))
            worst = largest_difference(ours, theirs)
            yield Case(
                part=PART,
                asked=f"{name} {settings or ''} ({title}), {len(batch)} sounds",
                library=library,
                ours={key: list(value.shape) for key, value in ours.items()},
                theirs=f"largest difference {worst:.1e}",
                equal=worst <= tolerance(name),
            )
    yield from _files(work, library)


def _files(work: Path, library: str) -> Iterator[Case]:
    import transformers.audio_utils

    from posexport.run.audio.sounds import read_all

    if not hasattr(transformers.audio_utils, "_load_audio_soundfile"):  # transformers 4 asks librosa
        return
    for name, content in files().items():
        path = work / name
        path.write_bytes(content)
        theirs = transformers.audio_utils.load_audio(str(path), sampling_rate=RATE, backend="soundfile")
        (ours,) = read_all(path, RATE)
        worst = largest_difference({"": ours}, {"": theirs})
        yield Case(
            part=PART,
            asked=f"samples of {name} at {RATE} Hz",
            library=f"{library} (load_audio, soundfile and soxr)",
            ours=list(ours.shape),
            theirs=f"largest difference {worst:.1e}",
            equal=worst == 0,
        )


def golden(into: Path) -> None:
    """Features and samples of the library, as tests/answers/audio keeps them."""
    import transformers

    into.mkdir(parents=True, exist_ok=True)
    kept: dict[str, NDArray[Any]] = {}
    for title, (name, settings) in EXTRACTORS.items():
        for key, value in library_features(name, settings, sounds()).items():
            kept[f"{title}/{key}"] = value.ravel()[::STEP].astype(np.int8 if key == "attention_mask" else np.float32)
            kept[f"{title}/{key}/shape"] = np.array(value.shape)
    with_files = into / "files"
    with_files.mkdir(exist_ok=True)
    for name, content in files().items():
        (with_files / name).write_bytes(content)
        theirs = transformers.audio_utils.load_audio(str(with_files / name), sampling_rate=RATE, backend="soundfile")
        kept[f"file/{name}"] = theirs[::STEP]
        kept[f"file/{name}/shape"] = np.array(theirs.shape)
        (with_files / name).unlink()
    with_files.rmdir()
    np.savez_compressed(into / "features.npz", **kept)
    (into / "made_by.json").write_text(json.dumps({"transformers": transformers.__version__}) + "\n")


if __name__ == "__main__":
    golden(Path(__file__).parent.parent.parent / "tests" / "answers" / "audio")
