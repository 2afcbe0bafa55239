"""Whisper's pipeline against transformers' (tests/answers/audio/whisper.json, made by ci/answers/whisper_speech.py)."""

import json
from pathlib import Path
from typing import Any

import pytest

import posexport
from ci.answers.audio import encoded, sound
from ci.answers.speech import plain, same
from ci.answers.tiny_whisper import tiny_whisper
from ci.answers.whisper_speech import CONVERTED, FILES, SEEDS, WORDS, asked, our_transcript, transcripts
from posexport import PosexportError
from posexport.run.audio.transcript import joined
from posexport.run.audio.words import TimedToken
from posexport.run.pipelines.pipeline import Pipeline

ANSWERS = json.loads((Path(__file__).parents[2] / "answers" / "audio" / "whisper.json").read_text())


@pytest.fixture(scope="module", params=["plain", "file", "words"])
def asking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Pipeline]:
    work = tmp_path_factory.mktemp("whisper")
    folder = tiny_whisper(work / "c", SEEDS[0], **FILES[request.param])
    posexport.convert(str(folder), work / "b", verify=False, **CONVERTED.get(request.param, {}))
    return request.param, posexport.pipeline(work / "b")


def test_speech_is_recognised_as_transformers_does(asking: tuple[str, Pipeline]) -> None:
    name, pipeline = asking
    for title, item, options in asked(name):
        ours = plain(pipeline(item, **options))
        assert same(ours, ANSWERS[name][title]), f"{title}: {ours}\n{ANSWERS[name][title]}"


def test_times_of_words_do_not_depend_on_other_sounds_or_on_the_language(asking: tuple[str, Pipeline]) -> None:
    name, pipeline = asking
    if name != "words":
        return
    options, sounds = {**WORDS, "num_beams": 1}, [sound(samples, seed=4) for samples in (15000, 33333)]
    alone = [pipeline(each, **options) for each in sounds]
    assert pipeline(sounds, **options) == alone
    with_language = [pipeline(each, return_language=True, **options) for each in sounds]
    assert {word["language"] for answer in with_language for word in answer["chunks"]} == {"english"}
    for answer in with_language:
        answer["chunks"] = [{key: word[key] for key in ("text", "timestamp")} for word in answer["chunks"]]
    assert plain(with_language) == plain(alone)


def test_times_of_words_need_the_alignment_heads(tmp_path: Path) -> None:
    posexport.convert(str(tiny_whisper(tmp_path / "c", SEEDS[0], **FILES["words"])), tmp_path / "b", verify=False)
    pipeline = posexport.pipeline(tmp_path / "b")
    with pytest.raises(PosexportError, match=r"needs cross_attentions.0.1, .*--outputs cross_attentions"):
        pipeline(sound(15000), **WORDS)


@pytest.mark.parametrize("number", range(3))
def test_transcripts_are_those_of_the_library(number: int) -> None:
    for each, wanted in [*zip(transcripts(60), ANSWERS["transcripts"], strict=True)][number::3]:
        assert our_transcript(*each) == wanted, each


def test_overlapping_tokens_are_joined_in_the_middle() -> None:
    def ids(*sequences: list[int]) -> list[int]:
        return [one.token for one in joined([[TimedToken(token) for token in each] for each in sequences])]

    assert ids([1, 2, 3, 4, 5], [3, 4, 5, 6]) == [1, 2, 3, 4, 5, 6]
    assert ids([1, 2, 3, 9, 5], [3, 4, 5, 6], [5, 6, 7]) == [1, 2, 3, 4, 5, 6, 7]
    assert ids([1, 2], [3]) == [1, 2, 3]


def test_what_is_not_possible_is_said(asking: tuple[str, Pipeline]) -> None:
    name, pipeline = asking
    long = encoded(sound(33333, seed=4), 16000, "WAV", "FLOAT")
    if name != "plain":
        return
    cases: list[tuple[dict[str, Any], str]] = [
        ({"return_timestamps": "char"}, "True, False or word for Whisper, got 'char'"),
        (WORDS, "needs alignment_heads in generation_config.json"),
        ({"generate_kwargs": {"language": "klingon"}}, "klingon"),
        ({"prompt_ids": [1]}, "prompt_ids"),
        ({"chunk_length_s": 1, "stride_length_s": 1}, "is not longer than both strides"),
    ]
    for options, said in cases:
        with pytest.raises(PosexportError, match=said):
            pipeline(long, **options)
    before = pipeline.stated
    try:
        pipeline.stated = {**before, "return_timestamps": False}
        with pytest.raises(PosexportError, match=r"2.1 s, more than the window of 1 s.*return_timestamps=True"):
            pipeline(long)
        assert pipeline(long, chunk_length_s=1, num_beams=1)["text"]
    finally:
        pipeline.stated = before
