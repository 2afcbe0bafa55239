"""Sound as a bundle's inputs: transformers' features (tests/answers/audio, by ci/answers/audio.py) and bad input."""

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import posexport
from ci.answers.audio import EXTRACTORS, LENGTHS, RATE, STEP, encoded, files, our_features, sound, sounds
from posexport import PosexportError, Session
from posexport.run.audio import settings
from posexport.run.audio.settings import remarks
from posexport.run.audio.sounds import read_all
from tests.tolerances import agree

GOLDEN = Path(__file__).parents[2] / "golden"
ANSWERS = np.load(Path(__file__).parents[2] / "answers" / "audio" / "features.npz")


def close(value: Any, key: str) -> None:
    assert list(value.shape) == ANSWERS[f"{key}/shape"].tolist()
    agree(value.ravel()[::STEP], ANSWERS[key], "logarithms of sums", np.float32)


@pytest.mark.parametrize("title", EXTRACTORS)
def test_features_are_those_of_transformers(title: str) -> None:
    name, said = EXTRACTORS[title]
    features = our_features(name, said, sounds())
    keys = {key.split("/")[1] for key in ANSWERS if key.startswith(f"{title}/")}
    assert set(features) == keys
    for key, value in features.items():
        assert value.dtype == (np.int64 if key == "attention_mask" else np.float32)
        close(value, f"{title}/{key}")


@pytest.mark.parametrize("name", ["16k.wav", "8k.wav", "44k1-stereo.flac", "48k-8bit.wav"])
def test_files_are_read_as_load_audio_does(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(files()[name])
    for given in (path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes()), {"path": path}):
        (samples,) = read_all(given, RATE)
        assert samples.dtype == np.float32
        close(samples, f"file/{name}")


def test_arrays_are_taken_as_pipelines_take_them() -> None:
    samples = sound(901)
    full = np.round(samples * 32767).astype(np.int16)
    (plain,) = read_all(samples, RATE)
    assert plain.tolist() == samples.tolist()
    assert read_all(samples.astype(np.float64).tolist(), RATE)[0].tolist() == samples.tolist()
    agree(read_all(np.stack([samples, samples * 3]), RATE)[0], samples * 2, "rounded", np.float32)
    assert read_all(samples[None], RATE)[0].tolist() == samples.tolist()
    agree(read_all(full, RATE)[0], full / 32768.0, "rounded", np.float32)
    agree(read_all(full.astype(np.int32) * 2**16, RATE)[0], full / 32768.0, "rounded", np.float32)
    assert read_all(np.array([0, 128, 255], np.uint8), RATE)[0].tolist() == [-1, 0, 127 / 128]
    doubled = read_all(samples, RATE, 8000)[0]
    assert len(doubled) == 1802
    for key in ("raw", "array"):
        (same,) = read_all({key: samples, "sampling_rate": 8000}, RATE)
        assert same.tolist() == doubled.tolist()
    assert [len(each) for each in read_all([samples, samples[:7]], RATE)] == [901, 7]


@pytest.mark.parametrize(
    ("given", "rate", "said"),
    [
        (b"RIFF no sound", None, "sound 0 is no sound that soundfile reads .* it reads WAV, FLAC"),
        ("missing.wav", None, "there is no file missing.wav"),
        ("https://example.org/a.wav", None, "posexport downloads no sounds"),
        (encoded(sound(99), 8000, "WAV", "PCM_16"), 16000, "has 8000 samples of a second .* sampling_rate says 16000"),
        (encoded(sound(0), 8000, "WAV", "PCM_16"), None, "sound 0 is empty"),
        ([sound(9), np.zeros(0, np.float32)], None, "sound 1 is empty"),
        ([], None, "got no sounds"),
        (np.array([0, np.nan, 1]), None, "sound 0 holds nan at sample 1"),
        (np.zeros((2, 3, 4)), None, r"shape \[2, 3, 4\]; samples are \[samples\]"),
        (np.zeros((99, 3)), None, r"99 channels; .*transpose \[samples, channels\]"),
        (np.zeros(5, bool), None, "holds bool; samples are float32"),
        ([None, None], None, "holds NoneType"),
        ({"array": np.zeros(5)}, None, "array and without sampling_rate"),
        ({"array": np.zeros(5), "sampling_rate": 8000}, 16000, "says sampling_rate 8000, and the option .* 16000"),
        ({"audio": np.zeros(5)}, None, "a dictionary with audio; it needs raw or array"),
        (np.zeros(5), 0, "sampling_rate is 0; give the samples of a second"),
        (np.zeros(5), 16000.0, "sampling_rate is 16000.0; give"),
    ],
)
def test_what_is_no_sound_is_said(given: Any, rate: Any, said: str) -> None:
    with pytest.raises(PosexportError, match=said):
        read_all(given, RATE, rate)


@pytest.mark.parametrize(
    ("module", "given"), [("soundfile", b"RIFF"), ("soxr", {"raw": np.zeros(9), "sampling_rate": 8000})]
)
def test_a_missing_library_is_named(module: str, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posexport.base.system.extras.is_installed", lambda name: name != module)
    with pytest.raises(PosexportError, match=rf"{module}, which is not installed: pip install 'posexport\[audio\]'"):
        read_all(given, RATE)


def checkpoint(name: str, into: Path, said: dict[str, Any]) -> Path:
    """A golden checkpoint with a preprocessor_config.json."""
    shutil.copytree(GOLDEN / name, into)
    (into / "preprocessor_config.json").write_text(json.dumps(said))
    return into


WAV2VEC2 = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "return_attention_mask": True, "feature_size": 1}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    work = tmp_path_factory.mktemp("sound")
    made = posexport.convert(str(checkpoint("wavlm-layer-forctc", work / "c", WAV2VEC2)), work / "b", verify=False)
    assert not [each for each in made.remarks if "preprocessor" in each]
    return posexport.load(work / "b")


@pytest.mark.all
def test_a_session_prepares_what_it_runs(session: Session) -> None:
    arrays = session.prepare(audio=sounds())
    assert arrays["input_values"].shape == (3, max(LENGTHS))
    assert arrays["attention_mask"].sum(1).tolist() == list(LENGTHS)
    together = session.run(arrays)["logits"]
    alone = session.run(session.prepare(audio=sounds()[2]))["logits"]
    agree(together[2, : alone.shape[1]], alone[0], "another library", np.float32)
    assert session.prepare(audio=sound(99), sampling_rate=8000)["input_values"].shape == (1, 198)


def test_the_settings_are_those_of_the_folder(tmp_path: Path) -> None:
    at = checkpoint("wavlm-layer-forctc", tmp_path / "c", {"feature_extractor_type": "Wav2Vec2FeatureExtractor"})
    there = {path.name: path for path in at.iterdir()}
    assert settings.settings_of(there) == {"feature_extractor_type": "Wav2Vec2FeatureExtractor"}
    nested = tmp_path / "processor_config.json"
    nested.write_text(json.dumps({"feature_extractor": {"sampling_rate": 8000}, "processor_class": "X"}))
    assert settings.settings_of({**there, nested.name: nested}) == {"sampling_rate": 8000}
    assert settings.type_of({}, there) == "Wav2Vec2FeatureExtractor"


@pytest.mark.parametrize(
    ("said", "remark"),
    [
        ({**WAV2VEC2, "do_trim": True}, "do_trim is not followed"),
        ({"feature_extractor_type": "WhisperFeatureExtractor", "dither": 0.1}, "dither = 0.1: transformers adds noise"),
        (
            {"feature_extractor_type": "ClapFeatureExtractor"},
            "not prepared: .* ClapFeatureExtractor, and posexport has",
        ),
        ({**WAV2VEC2, "sampling_rate": "16k"}, "sampling_rate = '16k'; posexport needs a value of type int"),
        ({**WAV2VEC2, "padding_side": "both"}, "padding_side = 'both'; posexport needs right or left"),
    ],
)
def test_what_is_not_followed_is_a_remark(said: dict[str, Any], remark: str, tmp_path: Path) -> None:
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(said))
    (sentence,) = remarks({path.name: path})
    assert re.search(remark, sentence)


def test_what_has_no_effect_is_no_remark(tmp_path: Path) -> None:
    said = {"feature_extractor_type": "WhisperFeatureExtractor", "n_samples": 5, "mel_filters": [[0.0]], "dither": 0.0}
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(said))
    assert remarks({path.name: path}) == []
    path.write_text(json.dumps({"image_processor_type": "ViTImageProcessor"}))
    assert remarks({path.name: path}) == []
    assert remarks({}) == []
