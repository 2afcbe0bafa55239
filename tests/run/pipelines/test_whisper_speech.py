"""Whisper's pipeline against transformers' (tests/answers/audio/whisper.json, made by ci/answers/whisper_speech.py)."""

import json
from pathlib import Path
from typing import Any

import pytest

import posexport
from ci.answers.audio import encoded, sound
from ci.answers.speech import plain, same
from ci.answers.tiny_whisper import tiny_whisper
from ci.answers.whisper_speech import FILES, SEEDS, asked, our_transcript, transcripts
from posexport import PosexportError
from posexport.run.audio.transcript import joined
from posexport.run.audio.words import TimedToken
from posexport.run.pipelines.pipeline import Pipeline

ANSWERS = json.loads((Path(__file__).parents[2] / "answers" / "audio" / "whisper.json").read_text())


@pytest.fixture(scope="module", params=["plain", "file"])
def asking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Pipeline]:
    work = tmp_path_factory.mktemp("whisper")
    posexport.convert(str(tiny_whisper(work / "c", SEEDS[0], **FILES[request.param])), work / "b", verify=False)
    return request.param, posexport.pipeline(work / "b")


def test_speech_is_recognised_as_transformers_does(asking: tuple[str, Pipeline]) -> None:
    name, pipeline = asking
    for title, item, options in asked(name):
        ours = plain(pipeline(item, **options))
        assert same(ours, ANSWERS[name][title]), f"{title}: {ours}\n{ANSWERS[name][title]}"


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
    if name == "file":
        return
    cases: list[tuple[dict[str, Any], str]] = [
        ({"return_timestamps": "word"}, "True or False for Whisper, got 'word'; times of words need attention weights"),
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
