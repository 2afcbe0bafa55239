"""`posexport.pipeline` answers as ``transformers.pipeline`` did (tests/answers/pipelines, ci/answers/pipelines.py)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import posexport
from posexport import PosexportError, Session

CLASSIFIER = Path(__file__).parent / "rerankers" / "cross-encoder" / "model"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Session:
    at = tmp_path_factory.mktemp("pipelines") / "classifier"
    posexport.convert(str(CLASSIFIER), at, target="cpu", verify=False)
    return posexport.load(at)


def test_one_input_gives_one_answer_and_a_list_a_list(classifier):
    classify = posexport.pipeline(classifier)
    score = classifier.predict([("a cat", "b")])[0]
    pair = {"text": "a cat", "text_pair": "b"}
    assert classify(pair) == {"label": "LABEL_0", "score": pytest.approx(score, abs=1e-6)}
    assert classify([pair]) == [classify(pair)]
    assert classify("a cat") == classify(["a cat"])
    assert classify(["a cat"], top_k=1) == [classify("a cat")]
    assert classify([]) == []


def test_a_generator_is_read_as_answers_are_asked_for(classifier):
    read = []

    def texts() -> Iterator[str]:
        for text in ("a cat", "two words here", "x"):
            read.append(text)
            yield text

    answers = posexport.pipeline(classifier)(texts())
    assert read == []
    next(answers)
    assert read == ["a cat"]
    assert len(list(answers)) == 2


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda session: posexport.pipeline(session)("x", topk=1), "no option topk; did you mean top_k"),
        (lambda session: posexport.pipeline(session, topk=1), "no option topk; did you mean top_k"),
        (lambda session: posexport.pipeline(session, "text-clasification"), "did you mean text-classification"),
        (lambda session: posexport.pipeline(session, threads=2), "give provider, threads and the like"),
        (lambda session: posexport.pipeline(session)(3), "input 0 must be a text, or a pair as .*got 3"),
        (lambda session: posexport.pipeline(session)("a " * 300), "has 302 tokens, .*at most 128.*truncation=True"),
        (lambda session: posexport.pipeline(session)("a", truncation="some"), "longest_first.*got 'some'"),
        (lambda session: posexport.pipeline(session)("a", top_k=0), "top_k must be at least 1, got 0"),
        (lambda session: posexport.pipeline(session)("a", function_to_apply="cube"), "must be one of sigmoid"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(classifier, call, said):
    with pytest.raises(PosexportError, match=said):
        call(classifier)
