"""Sampling against its definition, and text that comes in pieces."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posexport.errors import PosexportError
from posexport.runtime.sampling import Chooser, Sampling, pick, probabilities
from posexport.runtime.streams import Pieces, StopTexts
from tests.tolerances import agree_each

# -- the distribution ------------------------------------------------------------------------------


def by_definition(
    logits: list[float], temperature: float | None, top_k: int | None, top_p: float | None
) -> list[float]:
    """Plain Python, token by token: softmax, the k likeliest, of these the fewest with a probability of p."""
    best = max(logits)
    weights = [math.exp((x - best) / (temperature or 1.0)) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    kept = order[: top_k or len(order)]
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
LOGITS = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(
    logits=LOGITS,
    temperature=st.none() | st.sampled_from([0.25, 0.7, 1.0, 3.0]),
    top_k=st.none() | st.integers(0, 35),
    top_p=st.none() | st.sampled_from([0.001, 0.3, 0.61, 0.87, 0.999]),
)
def test_probabilities_are_those_of_the_definition(
    logits: list[float], temperature: float | None, top_k: int | None, top_p: float | None
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    got = probabilities(np.array(logits, np.float32), sampling)
    wanted = by_definition(logits, temperature, top_k, top_p)
    assert got.dtype == np.float64
    agree_each(got, wanted, "attention", np.float64)


def test_large_logits_neither_overflow_nor_vanish() -> None:
    p = probabilities(np.array([3e38, -3e38, 3e38], np.float32), Sampling(temperature=0.01))
    assert p.tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize(("top_k", "kept"), [(1, [1]), (2, [1, 3]), (3, [0, 1, 3]), (0, [0, 1, 2, 3])])
def test_of_equal_tokens_the_lower_ids_come_first(top_k: int, kept: list[int]) -> None:
    p = probabilities(np.array([1.0, 2.0, 1.0, 2.0], np.float32), Sampling(top_k=top_k))
    assert np.flatnonzero(p).tolist() == kept


def test_the_whole_probability_keeps_every_token() -> None:
    logits = np.array([0.0, -30.0, -36.0], np.float32)
    assert (probabilities(logits, Sampling(top_p=1.0)) > 0).all()
    assert np.flatnonzero(probabilities(logits, Sampling(top_p=1e-9))).tolist() == [0]


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
    sampling = Sampling(temperature=1.5, top_k=4, seed=11)
    choose, count = Chooser(sampling), 20000
    found = np.bincount([choose(logits) for _ in range(count)], minlength=5) / count
    wanted = by_definition(logits.tolist(), 1.5, 4, None)
    assert found[1] == 0
    # four standard deviations of a binomial count
    assert all(abs(f - w) <= 4 * math.sqrt(w * (1 - w) / count) for f, w in zip(found, wanted, strict=True))


def test_a_chooser_is_its_seed_and_turn() -> None:
    logits = np.zeros(50, np.float32)

    def drawn(seed: int, turn: int) -> list[int]:
        choose = Chooser(Sampling(temperature=1.0, seed=seed), turn)
        return [choose(logits) for _ in range(10)]

    assert drawn(3, 0) == drawn(3, 0)
    assert len({tuple(drawn(seed, turn)) for seed in (3, 4) for turn in (0, 1)}) == 4


@pytest.mark.parametrize(
    ("sampling", "greedy"),
    [
        (Sampling(), True),
        (Sampling(seed=9), True),
        (Sampling(temperature=0), True),
        (Sampling(temperature=0, top_k=5), True),
        (Sampling(temperature=1e-3), False),
        (Sampling(top_k=5), False),
        (Sampling(top_p=0.5), False),
    ],
)
def test_what_is_greedy(sampling: Sampling, greedy: bool) -> None:
    assert sampling.greedy == greedy
    if greedy:
        assert Chooser(sampling)(np.array([1.0, 5.0, 5.0, -1.0], np.float32)) == 1


def test_no_token_comes_from_what_is_no_number() -> None:
    for sampling in (Sampling(), Sampling(temperature=1.0)):
        with pytest.raises(PosexportError, match=r"not numbers \(NaN\)"):
            Chooser(sampling)(np.array([1.0, np.nan], np.float32))
    assert Chooser(Sampling(temperature=1.0))(np.array([-np.inf, 0.0, -np.inf], np.float32)) == 1


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
