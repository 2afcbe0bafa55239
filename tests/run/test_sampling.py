"""Sampling against its definition, and text that comes in pieces."""

import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posexport.errors import PosexportError
from posexport.run.generate.config import GenerationConfig
from posexport.run.generate.result import Chooser, Pieces, StopTexts, pick
from posexport.run.logits.processor import Setting, TokenRows, softmax
from posexport.run.logits.registry import process, processors
from tests.tolerances import agree_each

# -- the distribution ------------------------------------------------------------------------------


def probabilities(logits: list[float], **options: Any) -> np.ndarray:
    """What tokens are drawn from."""
    scores = np.array([logits], np.float32)
    each = processors(GenerationConfig(do_sample=True, **options), Setting())
    return softmax(process(scores, TokenRows([[1]], [9]), each).astype(np.float64))[0]


def by_definition(
    logits: list[float], temperature: float | None, top_k: int | None, top_p: float | None
) -> list[float]:
    """Plain Python, token by token: softmax, the k likeliest and what is as likely, the fewest with probability p."""
    best = max(logits)
    weights = [math.exp((x - best) / (temperature or 1.0)) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], -i))
    count = min(50 if top_k is None else top_k or len(order), len(order))
    kept = [i for i in order if logits[i] >= logits[order[count - 1]]]
    if top_p is not None:
        share, nucleus = Fraction(0), []
        total = sum(Fraction(weights[i]) for i in kept)
        for i in kept:
            if nucleus and share >= Fraction(top_p) * total:
                break
            nucleus.append(i)
            share += Fraction(weights[i])
        kept = nucleus
    total = sum(Fraction(weights[i]) for i in kept)
    return [float(Fraction(weights[i]) / total) if i in kept else 0.0 for i in range(len(logits))]


#: eighths, so that some are equal
LOGITS = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=60)


@pytest.mark.all
@settings(max_examples=150, deadline=None)
@given(
    logits=LOGITS,
    temperature=st.none() | st.sampled_from([0.25, 0.7, 1.0, 3.0]),
    top_k=st.none() | st.integers(0, 65),
    top_p=st.none() | st.sampled_from([0.001, 0.3, 0.61, 0.87, 0.999]),
)
def test_probabilities_are_those_of_the_definition(
    logits: list[float], temperature: float | None, top_k: int | None, top_p: float | None
) -> None:
    got = probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    agree_each(got, by_definition(logits, temperature, top_k, top_p), "attention", np.float32)


def test_large_logits_neither_overflow_nor_vanish() -> None:
    assert probabilities([3e38, -3e38, 3e38], temperature=0.01).tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize(("top_k", "kept"), [(1, [1, 3]), (2, [1, 3]), (3, [0, 1, 2, 3]), (0, [0, 1, 2, 3])])
def test_tokens_as_likely_as_the_kth_are_kept(top_k: int, kept: list[int]) -> None:
    assert np.flatnonzero(probabilities([1.0, 2.0, 1.0, 2.0], top_k=top_k)).tolist() == kept


def test_the_whole_probability_keeps_every_token() -> None:
    assert (probabilities([0.0, -30.0, -36.0], top_p=1.0) > 0).all()
    assert np.flatnonzero(probabilities([0.0, -30.0, -36.0], top_p=1e-9)).tolist() == [0]


# -- the draw --------------------------------------------------------------------------------------


def test_draws_invert_the_cumulative_distribution() -> None:
    p = np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    drawn = [pick(p, (i + 0.5) / 1000) for i in range(1000)]
    assert np.bincount(drawn, minlength=6).tolist() == [0, 250, 0, 500, 250, 0]
    assert drawn == sorted(drawn)
    assert pick(p, 0.0) == 1
    assert pick(p, np.nextafter(1.0, 0.0)) == 4
    assert pick(p, 1.0) == 4


def test_frequencies_are_the_probabilities() -> None:
    logits = np.array([0.5, -1.0, 2.0, 0.0, 1.0], np.float32)
    choose, count = Chooser(samples=True, seed=11), 20000
    wanted = by_definition(logits.tolist(), 1.5, 4, None)
    with np.errstate(divide="ignore"):
        scores = np.log(wanted)
    found = np.bincount([choose(scores) for _ in range(count)], minlength=5) / count
    assert found[1] == 0
    # four standard deviations of a binomial count
    assert all(abs(f - w) <= 4 * math.sqrt(w * (1 - w) / count) for f, w in zip(found, wanted, strict=True))


def test_a_chooser_is_its_seed_and_turn() -> None:
    logits = np.zeros(50, np.float32)

    def drawn(seed: int, turn: int) -> list[int]:
        choose = Chooser(samples=True, seed=seed, repeat=turn)
        return [choose(logits) for _ in range(10)]

    assert drawn(3, 0) == drawn(3, 0)
    assert len({tuple(drawn(seed, turn)) for seed in (3, 4) for turn in (0, 1)}) == 4


@pytest.mark.parametrize(
    ("options", "samples"),
    [
        ({}, False),
        ({"seed": 9}, False),
        ({"temperature": 0}, False),
        ({"temperature": 0, "top_k": 5}, False),
        ({"temperature": 1e-3}, True),
        ({"top_k": 5}, True),
        ({"min_p": 0.5}, True),
        ({"do_sample": True}, True),
        ({"num_beams": 3}, False),
    ],
)
def test_what_samples(options: dict[str, Any], samples: bool) -> None:
    assert GenerationConfig(**options).samples == samples


def test_no_token_comes_from_what_is_no_number() -> None:
    for samples in (False, True):
        with pytest.raises(PosexportError, match=r"not numbers \(NaN\)"):
            Chooser(samples=samples)(np.array([1.0, np.nan], np.float32))
    assert Chooser(samples=True)(np.array([-np.inf, 0.0, -np.inf], np.float32)) == 1
    assert Chooser()(np.array([1.0, 5.0, 5.0, -1.0], np.float32)) == 1
    with pytest.raises(PosexportError, match="every token is forbidden"):
        Chooser(samples=True)(np.full(3, -np.inf, np.float32))


# -- text in pieces --------------------------------------------------------------------------------


def as_bytes(ids: object) -> str:
    return bytes(ids).decode("utf-8", "replace")  # type: ignore[call-overload,no-any-return]


@settings(max_examples=100, deadline=None)
@given(prompt=st.text(max_size=5), text=st.text(min_size=1, max_size=12))
def test_a_token_a_byte_never_shows_half_a_character(prompt: str, text: str) -> None:
    pieces = Pieces(as_bytes, prompt.encode())
    got = [pieces.push(byte) for byte in text.encode()]
    assert "".join(got) + pieces.finish() == text
    if "�" not in text:
        assert all("�" not in piece for piece in got)
        assert [piece for piece in got if piece] == list(text)


def test_bytes_that_nothing_finishes_come_at_the_end() -> None:
    pieces = Pieces(as_bytes, b"a")
    assert [pieces.push(byte) for byte in b"b\xe2\x82"] == ["b", "", ""]
    assert pieces.finish() == "�"
    assert pieces.finish() == ""


def test_bytes_that_are_no_character_are_not_held_for_ever() -> None:
    pieces = Pieces(as_bytes, b"")
    told = [pieces.push(0xFF) for _ in range(40)]
    assert "".join(told).count("�") >= 30


def test_a_tokenizer_with_byte_fallback_streams_whole_characters() -> None:
    from tokenizers import Tokenizer

    vocab = {**{f"<0x{byte:02X}>": byte for byte in range(256)}, "▁a": 256, "b": 257, "▁c": 258, "<s>": 259}
    special = {"id": 259, "content": "<s>", "special": True}
    special |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = Tokenizer.from_str(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [special],
                "decoder": {
                    "type": "Sequence",
                    "decoders": [
                        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                        {"type": "ByteFallback"},
                        {"type": "Fuse"},
                        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                    ],
                },
                "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True},
            }
        )
    )

    def decode(ids: object) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))  # type: ignore[call-overload]

    ids = [256, 257, *"é€".encode(), 258, 259, 256, *"😀".encode(), 257]
    pieces = Pieces(decode, [259, 256])
    got = [pieces.push(token) for token in ids]
    assert "".join(got) + pieces.finish() == " abé€ c a😀b"
    assert [piece for piece in got if piece] == [" a", "b", "é", "€", " c", " a", "😀", "b"]


@settings(max_examples=200, deadline=None)
@given(
    pieces=st.lists(st.text(alphabet="ab", max_size=3), max_size=8),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3),
)
def test_text_goes_through_up_to_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    places = [text.index(stop) for stop in stops if stop in text]
    filtered = StopTexts(stops)
    got = "".join([filtered.push(piece) for piece in pieces])
    if places:
        assert filtered.stopped
        # pieces end where they end: of two stops that overlap the one that is whole first decides
        assert any(got == text[: text.index(stop)] for stop in stops if stop in text)
        assert filtered.finish() == ""
    else:
        assert not filtered.stopped
        held = filtered.finish()
        assert got + held == text
        suffixes = {text[len(text) - n :] for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])}
        assert held == max(suffixes, key=len, default="")
