"""Offsets of tokens, and vectors of spans as the published code of late chunking makes them (arXiv:2409.04701)."""

import bisect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import posexport
from posexport import PosexportError, Session
from posexport.run.spans import late_chunks, offsets_of
from tests import bge_m3
from tests.tolerances import agree

TEXTS = ["w7 w8  w9 nobody w10", "w11 w12"]
#: characters of "w7 w8" and of the rest, with the spaces between
SPANS = [[(0, 5), (5, 20)], [(0, 3), (3, 7), (0, 7)]]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    at = tmp_path_factory.mktemp("spans")
    posexport.convert(str(bge_m3.write(at / "model")), at / "bundle", target="cpu", verify=False)
    return posexport.load(at / "bundle")


def published(states_TC: np.ndarray, offsets: list[tuple[int, int]], spans: list[tuple[int, int]]) -> np.ndarray:
    """Tokens from the first that starts in the span to the last that ends in it; their sum by their number."""
    words = [(place, pair) for place, pair in enumerate(offsets) if pair[0] < pair[1]]
    pooled = []
    for start, end in spans:
        first = bisect.bisect_left([pair[0] for _, pair in words], start)
        last = bisect.bisect_right([pair[1] for _, pair in words], end)
        places = [place for place, _ in words[first:last]]
        pooled.append(states_TC[places].sum(0) / len(places))
    return np.stack(pooled)


def test_offsets_are_the_characters_of_tokens(session: Session) -> None:
    vectors, offsets = session.encode(TEXTS, output_value="token_embeddings", return_offsets=True)
    for text, states_TC, offsets_T2, alone in zip(
        TEXTS, vectors, offsets, session.encode(TEXTS, output_value="token_embeddings"), strict=True
    ):
        assert np.array_equal(states_TC, alone)
        assert [text[start:end] for start, end in offsets_T2] == ["", *text.split(), ""]
    states_TC, offsets_T2 = session.encode(TEXTS[0], output_value="token_embeddings", return_offsets=True)
    assert len(states_TC) == len(offsets_T2) == 7
    _, prompted = session.encode(TEXTS[0], prompt="w20 w21 ", output_value="token_embeddings", return_offsets=True)
    assert prompted.tolist() == [[0, 0], [0, 0], *offsets_T2.tolist()]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_spans_are_pooled_as_published(session: Session, batch_size: int) -> None:
    got = session.encode(TEXTS, spans=SPANS, batch_size=batch_size)
    states, offsets = session.encode(TEXTS, output_value="token_embeddings", return_offsets=True)
    for vectors, states_TC, offsets_T2, spans in zip(got, states, offsets, SPANS, strict=True):
        agree(vectors, published(states_TC, offsets_T2.tolist(), spans), "another library", np.float32)
    single = session.encode(TEXTS[1], spans=SPANS[1], normalize_embeddings=True)
    agree(single, got[1] / np.linalg.norm(got[1], axis=1, keepdims=True), "another library", np.float32)
    # in another text a span has another vector
    assert np.abs(session.encode("w11", spans=[(0, 3)])[0] - got[1][0]).max() > 1e-3


def test_each_token_is_in_one_span_of_a_cut() -> None:
    """Tokens with the space before them, as byte-level tokenizers count: the space is no part of the word before."""
    states = np.arange(8.0).reshape(4, 2)
    offsets = np.array([[0, 0], [0, 5], [5, 11], [0, 0]])
    (whole,) = late_chunks([states], [offsets], [[(0, 6), (6, 11)]])
    assert np.array_equal(whole, states[1:3])


def test_offsets_of_a_prompt_are_left_out() -> None:
    row = SimpleNamespace(offsets=[(0, 0), (0, 4), (4, 9), (9, 12), (0, 0)])
    assert offsets_of(row, "ask: ").tolist() == [[0, 0], [0, 0], [0, 4], [4, 7], [0, 0]]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"spans": [[(0, 1)]]}, "spans must be a list of \\(start, end\\) for each of 2 texts"),
        ({"spans": [[(0, 3)], [(3, 3)]]}, "\\(3, 3\\) is no span of text 1"),
        ({"spans": [[(0, 3)], [(3, 8)]]}, "in characters from 0 to 7"),
        ({"spans": [[(0, 3)], []]}, "text 1 has no list of spans"),
        ({"spans": [[(0, 1)], [(0, 7)]]}, "span \\(0, 1\\) of text 0 has no token that ends in it"),
        ({"spans": SPANS, "output_value": "token_embeddings"}, "leave output_value out"),
        ({"return_offsets": True}, "return_offsets is for output_value='token_embeddings'"),
    ],
)
def test_what_cannot_be_asked(session: Session, call: dict[str, Any], said: str) -> None:
    with pytest.raises(PosexportError, match=said):
        session.encode(TEXTS, **call)


@pytest.mark.all
def test_a_projection_after_the_pooling_has_no_spans(tmp_path: Path) -> None:
    stored = Path(__file__).parents[1] / "embedders" / "embeddinggemma" / "model"
    posexport.convert(str(stored), tmp_path / "b", target="cpu", verify=False)
    with pytest.raises(PosexportError, match="encode each span as a text"):
        posexport.load(tmp_path / "b").encode("a b", spans=[(0, 3)])
