"""Whole calls of generate and single logits processors, compared with stored results of transformers 5.24."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import posexport
from ci.answers import generation as asked
from posexport.run.bundle.read import read
from posexport.run.bundle.write import seal
from posexport.run.session import Session

QUESTIONS = list(asked.questions())
ANSWERS = json.loads((asked.ANSWERS / "generate.json").read_text())


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Session]:
    """A bundle of each checkpoint, with the question's generation_config.json."""
    work, bundles = tmp_path_factory.mktemp("answers"), dict[tuple[str, str], Path]()

    def opened(question: asked.Question, cache: str = "dynamic") -> Session:
        key = (question.model, cache)
        if key not in bundles:
            bundles[key] = work / f"{question.model}-{cache}"
            posexport.convert(
                str(asked.CHECKPOINTS / asked.MODELS[question.model]),
                bundles[key],
                verify=False,
                precision="fp32",
                cache=cache,
            )
        bundle = bundles[key]
        stated = asked.checkpoint(question, work) / "generation_config.json"
        if stated.exists():
            (bundle / stated.name).write_bytes(stated.read_bytes())
        else:
            (bundle / stated.name).unlink(missing_ok=True)
        seal(bundle, read(bundle))
        return posexport.load(bundle, threads=1)

    return opened


def named(question: asked.Question) -> str:
    return f"{question.model}: {question.name}"


def parameters() -> list[Any]:
    """Questions and answers; a conversion takes seconds, so three models wait for the long tier."""
    pairs = zip(QUESTIONS, ANSWERS, strict=True)
    long = dict.fromkeys(("bart", "marian", "mbart"), pytest.mark.all)
    return [pytest.param(*pair, id=named(pair[0]), marks=long.get(pair[0].model, ())) for pair in pairs]


@pytest.mark.parametrize(("question", "expected"), parameters())
def test_a_call_gives_transformers_tokens(
    question: asked.Question, expected: list[dict[str, object]], session: Callable[..., Session]
) -> None:
    actual = asked.answers(session(question), question)
    assert [item["tokens"] for item in actual] == [item["tokens"] for item in expected]
    assert asked.same(actual, expected)


def test_the_answers_are_not_all_alike() -> None:
    """Each option changes tokens, and sequences end at different lengths: a broken option would show."""
    by_model = [[item["tokens"] for item in expected] for expected in ANSWERS]
    for model in (*asked.DECODERS, *asked.TRANSLATORS):
        of_model = [rows for question, rows in zip(QUESTIONS, by_model, strict=True) if question.model == model]
        assert len({json.dumps(rows) for rows in of_model}) >= 0.7 * len(of_model)
        assert len({len(row) for rows in of_model for row in rows}) >= 4
        assert len({token for rows in of_model for row in rows for token in row}) >= 9


@pytest.mark.parametrize("model", ["qwen2", pytest.param("bart", marks=pytest.mark.all)])
def test_a_static_cache_follows_the_beams(model: str, session: Callable[..., Session]) -> None:
    pairs = zip(QUESTIONS, ANSWERS, strict=True)
    for question, expected in [pair for pair in pairs if pair[0].model == model and "beams" in pair[0].name][:2]:
        assert asked.same(asked.answers(session(question, "static"), question), expected)


@pytest.mark.parametrize("name", asked.PROCESSORS)
def test_a_processor_gives_transformers_scores(name: str) -> None:
    with np.load(asked.ANSWERS / "processors.npz") as stored:
        expected = stored[name]
    actual = asked.processed_by_posexport(name, asked.PROCESSORS[name])
    assert asked.close(actual, expected)
    unprocessed = asked.drawn()[2]
    assert not np.array_equal(expected, unprocessed) or name == "min_length reached"


@pytest.mark.parametrize("name", asked.STAMPS)
def test_timestamps_follow_transformers_rules(name: str) -> None:
    with np.load(asked.ANSWERS / "processors.npz") as stored:
        expected = stored[f"timestamps: {name}"]
    assert asked.close(asked.stamped_by_posexport(asked.STAMPS[name]), expected)
