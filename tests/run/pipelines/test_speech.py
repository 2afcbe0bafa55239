"""Pipelines of sound against transformers' (tests/answers/audio/pipelines.json, made by ci/answers/speech.py)."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import posexport
from ci.answers.audio import encoded, sound
from ci.answers.speech import DELIMITER, TOKENIZERS, VOCABULARY, inputs, plain, same, speech_checkpoint
from posexport import PosexportError, Session
from posexport.run.audio.chunks import chunk_lengths
from posexport.run.audio.ctc import open_tokenizer
from posexport.run.audio.settings import remarks
from posexport.run.pipelines.audio import AudioClassification, stride_of
from posexport.run.pipelines.pipeline import Pipeline
from tests import command

ANSWERS = json.loads((Path(__file__).parents[2] / "answers" / "audio" / "pipelines.json").read_text())


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    work = tmp_path_factory.mktemp("speech")
    posexport.convert(str(speech_checkpoint(work / "c", {})), work / "b", verify=False)
    return posexport.load(work / "b")


def pipeline(session: Session, tokenizer: dict[str, Any]) -> Pipeline:
    """The pipeline of a bundle, with another tokenizer than its files say."""
    made = posexport.pipeline(session)
    config = {**made.files.tokenizer_config, **tokenizer}
    names = VOCABULARY[:-1] if "?" in tokenizer.values() else VOCABULARY
    made.tokenizer = open_tokenizer({token: number for number, token in enumerate(names)}, config, {})
    return made


@pytest.mark.parametrize("name", TOKENIZERS)
def test_speech_is_recognised_as_transformers_does(name: str, session: Session) -> None:
    asking = pipeline(session, TOKENIZERS[name])
    wanted = ANSWERS["ctc"][name]
    for asked, item, options in inputs() if name == "plain" else inputs()[:3]:
        ours = plain(asking(item, **options))
        assert same(ours, wanted[asked]), f"{asked}: {ours}\n{wanted[asked]}"
        if isinstance(item, np.ndarray):
            assert asking(item, batch_size=3, **options) == asking(item, **options)


def test_the_task_is_chosen_and_files_are_read(session: Session) -> None:
    asking = posexport.pipeline(session, "automatic-speech-recognition", return_timestamps="word")
    file = encoded(sound(301, seed=9), 16000, "WAV", "FLOAT")
    assert asking(file) == asking(sound(301, seed=9)) == asking(sound(301, seed=9).tolist())
    assert [*asking(each for each in [file])] == asking([file])


def test_the_command_line_prints_texts(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    file.write_bytes(encoded(sound(301, seed=9), 16000, "WAV", "FLOAT"))
    done = command.posexport("run", session.directory, "--audio", file, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["answers"] == [{"text": ANSWERS["ctc"]["plain"]["301 samples {}"]["text"]}]
    done = command.posexport("run", session.directory, "--audio", file, "--audio", "missing.wav")
    assert done.returncode == 2
    assert "sound 1: there is no file missing.wav" in done.stderr


def test_a_delimiter_that_transformers_5_does_not_read_is_followed(tmp_path: Path) -> None:
    spans = open_tokenizer({token: n for n, token in enumerate(VOCABULARY)}, DELIMITER, {}).characters([5, 6, 5, 7, 4])
    assert [span.text for span in spans] == [" ", "T", " ", "A", "|"]
    folder = speech_checkpoint(tmp_path / "c", DELIMITER)
    (sentence,) = remarks({path.name: path for path in folder.iterdir()})
    assert "word_delimiter_token = E: followed, as transformers 4.57 does" in sentence


def test_a_language_model_is_a_remark(tmp_path: Path) -> None:
    path = tmp_path / "preprocessor_config.json"
    said = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "processor_class": "Wav2Vec2ProcessorWithLM"}
    path.write_text(json.dumps(said))
    (sentence,) = remarks({path.name: path})
    assert "decoded greedily, without the language model" in sentence


def test_a_vocabulary_by_languages() -> None:
    nested = {"eng": {"<pad>": 0, "a": 1}, "deu": {"<pad>": 0, "b": 1}}
    assert open_tokenizer(nested, {"target_lang": "deu"}, {}).tokens[1] == "b"
    with pytest.raises(PosexportError, match=r"target_lang = 'fra', and vocab.json has deu, eng"):
        open_tokenizer(nested, {"target_lang": "fra"}, {})
    with pytest.raises(PosexportError, match="tokenizer_class = Wav2Vec2PhonemeCTCTokenizer"):
        open_tokenizer({"a": 1}, {"tokenizer_class": "Wav2Vec2PhonemeCTCTokenizer"}, {})
    with pytest.raises(PosexportError, match=r"has no vocab.json"):
        open_tokenizer({}, {}, {})


@pytest.mark.parametrize("number", range(len(ANSWERS["classes"])))
def test_classes_are_scored_as_transformers_does(number: int, tmp_path: Path) -> None:
    asked = ANSWERS["classes"][number]
    labels = {str(each): f"class {each}" for each in range(7)}
    (tmp_path / "config.json").write_text(
        json.dumps({"id2label": labels, "problem_type": asked["problem_type"], "model_type": "wav2vec2"})
    )
    (tmp_path / "preprocessor_config.json").write_text("{}")
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"feature_extractor_type": "Wav2Vec2FeatureExtractor"})
    )
    spec = SimpleNamespace(name="input_values", axes=["batch_size", "num_samples"], role="values")
    manifest = SimpleNamespace(
        inputs=[spec], files=["config.json", "preprocessor_config.json"], task="audio-classification"
    )
    answer = {"logits": np.array([asked["logits"]], np.float32)}
    session: Any = SimpleNamespace(directory=tmp_path, manifest=manifest, run=lambda *_, **__: answer)
    classify = AudioClassification(session, "audio-classification")
    assert same(classify(sound(999), **asked["options"]), asked["answer"], 1e-6)
    with pytest.raises(PosexportError, match="top_k must be at least 1"):
        classify(sound(999), top_k=0)
    with pytest.raises(PosexportError, match="function_to_apply must be one of softmax, sigmoid, none"):
        classify(sound(999), function_to_apply="soft")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"return_timestamps": True}, "return_timestamps must be char or word for a model with CTC, got True"),
        ({"chunk_length_s": 1, "stride_length_s": 0.6}, "chunk_length_s = 1 is not longer than both strides"),
        ({"chunk_length_s": 1, "stride_length_s": (1, 2, 3)}, "one number or two"),
        ({"chunk_length": 1}, "no option chunk_length; did you mean chunk_length_s"),
    ],
)
def test_bad_options_are_said(options: dict[str, Any], said: str, session: Session) -> None:
    with pytest.raises(PosexportError, match=said):
        posexport.pipeline(session)(sound(99), **options)
    with pytest.raises(PosexportError, match=r"stride \(60, 60\) is longer than the sound, 99 samples"):
        posexport.pipeline(session)({"raw": sound(99), "sampling_rate": 16000, "stride": (60, 60)})
    with pytest.raises(PosexportError, match="dictionary with stride has no sampling_rate"):
        stride_of({"path": "x.wav", "stride": (1, 1)}, 99, 16000)


def test_chunks_cover_a_sound() -> None:
    for samples in range(1, 60):
        lengths = chunk_lengths(10, (2, 3), 1)
        kept = [
            chunk[stride.left : stride.length - stride.right].tolist()
            for chunk, stride in lengths.cut(np.arange(samples, dtype=np.float32))
        ]
        assert [sample for each in kept for sample in each] == list(range(samples))
