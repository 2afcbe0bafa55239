"""Byte-pair encoding: the library's merges are the textbook's, and a bundle runs texts with what was trained."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from posexport.cli import group
from posexport.errors import PosexportError
from posexport.run.bundle.read import read as read_bundle
from posexport.run.tokenizer.byte_pair import SPECIAL, encode, train, with_tokenizer
from posexport.sources import builtin

#: Sennrich et al. 2016, section 3.2, with the tutorials' fifth word once
TEXTBOOK = {"low": 5, "lower": 2, "newest": 6, "widest": 3, "happier": 1}
ALL = 1_000


def corpus_of(words: dict[str, int], directory: Path) -> Path:
    path = directory / "corpus.txt"
    path.write_text("\n".join(" ".join([word] * count) for word, count in words.items()), encoding="utf-8")
    return path


def textbook(words: dict[str, int], merges: int) -> list[tuple[str, str]]:
    """Count words with an end mark, count adjacent pairs weighted by frequency, merge the most frequent, repeat.

    Of equally frequent pairs the one whose symbols came first: letters with the mark, letters, merges, each in order.
    """
    split = {(*word[:-1], word[-1] + "</w>"): count for word, count in words.items()}
    came = sorted({s for w in split for s in w if s.endswith("</w>")}) + sorted({c for word in words for c in word})
    done: list[tuple[str, str]] = []
    while len(done) < merges:
        counts: Counter[tuple[str, str]] = Counter()
        for symbols, count in split.items():
            for pair in itertools.pairwise(symbols):
                counts[pair] += count
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], came.index(pair[0]), came.index(pair[1])))
        done.append(best)
        if "".join(best) not in came:
            came.append("".join(best))
        split = {merged(symbols, best): count for symbols, count in split.items()}
    return done


def merged(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    rest = list(symbols)
    while rest:
        both = tuple(rest[:2]) == pair
        out.append("".join(rest[: 1 + both]))
        rest = rest[1 + both :]
    return tuple(out)


def segmented(word: str, merges: list[tuple[str, str]]) -> list[str]:
    symbols: tuple[str, ...] = (*word[:-1], word[-1] + "</w>")
    for pair in merges:
        symbols = merged(symbols, pair)
    return list(symbols)


def test_merges_are_the_textbooks(tmp_path: Path) -> None:
    trained = train(corpus_of(TEXTBOOK, tmp_path), ALL)
    assert trained.merges == textbook(TEXTBOOK, ALL)
    # counted by hand: e s and s t</w> are in newest (6) and widest (3), w</w> ends low (5), l o is in low and lower (7)
    assert trained.merges[:3] == [("e", "s"), ("es", "t</w>"), ("l", "o")]


@pytest.mark.parametrize("merges", [0, 1, 7])
def test_vocabulary_size_stops_the_merging(merges: int, tmp_path: Path) -> None:
    letters = {c for word in TEXTBOOK for c in word}
    size = len(SPECIAL) + len(letters) + len({word[-1] for word in TEXTBOOK}) + merges
    trained = train(corpus_of(TEXTBOOK, tmp_path), size)
    assert trained.size == size
    assert trained.merges == textbook(TEXTBOOK, merges)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text("abcdä", min_size=1, max_size=6), st.integers(1, 4), min_size=1, max_size=8))
def test_any_corpus_merges_as_in_the_textbook(tmp_path_factory: pytest.TempPathFactory, words: dict[str, int]) -> None:
    trained = train(corpus_of(words, tmp_path_factory.mktemp("bpe")), ALL)
    assert trained.merges == textbook(words, ALL)


def test_the_same_corpus_gives_the_same_file(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the quick brown fox jumps over a lazy dog while zebras pack my box")
    assert len({train(corpus, ALL).data for _ in range(5)}) == 1


def test_encoding_applies_the_merges(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    trained = train(corpus_of(TEXTBOOK, tmp_path), 25)
    path.write_bytes(trained.data)
    (row,) = encode(path, ["lowest  newer\nlower"])
    wanted = [token for word in ("lowest", "newer", "lower") for token in segmented(word, trained.merges)]
    assert row.tokens == wanted
    vocab = json.loads(trained.data)["model"]["vocab"]
    assert row.ids == [vocab[token] for token in wanted]
    assert encode(path, ["xylem low"])[0].tokens[0] == "<unk>"
    assert [vocab[token] for token in SPECIAL] == [0, 1]
    # the letters with a mark are no special tokens: they are not cut out of other words
    assert encode(path, ["r</w>"])[0].tokens != ["r</w>"]


def test_commands_train_and_encode(tmp_path: Path) -> None:
    corpus, target = corpus_of(TEXTBOOK, tmp_path), tmp_path / "tokenizer.json"
    arguments = ["tokenizer", "train", str(corpus), "-o", str(target), "--vocab-size", "25"]
    done = CliRunner().invoke(group, arguments)
    assert (done.exit_code, done.stdout) == (0, f"{target}: 25 tokens, 7 merges\n")
    done = CliRunner().invoke(group, [*arguments[:-1], "900", "--force", "--json"])
    assert json.loads(done.stdout)["size"] == 36
    assert "36 tokens, not 900" in done.stderr
    done = CliRunner().invoke(
        group, ["tokenizer", "encode", str(target), "--text", "low", "--text", "widest", "--json"]
    )
    assert [row["tokens"] for row in json.loads(done.stdout)] == [["low</w>"], ["widest</w>"]]


def test_a_bundle_gets_the_tokenizer_and_runs_texts(tmp_path: Path) -> None:
    target = tmp_path / "tokenizer.json"
    target.write_bytes(train(corpus_of(TEXTBOOK, tmp_path), 25).data)
    tiny = ["layers=1", "hidden=20", "feedforward=37", "vocab=25"]
    arguments = ["convert", "encoder-alibi", "-o", str(tmp_path / "b"), "--tokenizer", str(target), "--no-verify"]
    done = CliRunner().invoke(group, [*arguments, *(part for pair in tiny for part in ("--set", pair))])
    assert done.exit_code == 0, done.output
    assert "tokenizer.json" in read_bundle(tmp_path / "b").files
    done = CliRunner().invoke(group, ["run", str(tmp_path / "b"), "--text", "lowest", "--text", "low lower", "--json"])
    assert done.exit_code == 0, done.output
    longest = max(len(row.ids) for row in encode(target, ["lowest", "low lower"]))
    states = json.loads(done.stdout)["outputs"]["last_hidden_state"]
    assert (len(states), len(states[0]), len(states[0][0])) == (2, longest, 20)


def test_convert_refuses_what_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(train(corpus_of(TEXTBOOK, tmp_path), 25).data)
    small = builtin.builtin_source("encoder-nope", task=None, settings_given=("layers=1", "vocab=24"))
    with pytest.raises(PosexportError, match=r"numbers its tokens up to 24, .* takes ids below 24"):
        with_tokenizer(small, path)
    fits = builtin.builtin_source("encoder-nope", task=None, settings_given=("layers=1", "vocab=25"))
    given_one = with_tokenizer(fits, path)
    assert given_one.files == {"tokenizer.json": path}
    with pytest.raises(PosexportError, match=r"brings its own tokenizer.json"):
        with_tokenizer(given_one, path)
    (tmp_path / "tokenizer_config.json").write_text('{"padding_side": "left"}')
    assert set(with_tokenizer(fits, tmp_path).files) == {"tokenizer.json", "tokenizer_config.json"}
    path.write_text('{"version": "1.0"}')
    with pytest.raises(PosexportError, match=r"is no tokenizer.json"):
        with_tokenizer(fits, path)
    with pytest.raises(PosexportError, match=r"cannot read the tokenizer"):
        with_tokenizer(fits, tmp_path / "nowhere.json")


def test_bad_corpora_are_sentences(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    with pytest.raises(PosexportError, match="cannot read the corpus"):
        train(corpus, 50)
    corpus.write_bytes(b"")
    with pytest.raises(PosexportError, match="has no words"):
        train(corpus, 50)
    corpus.write_bytes(b"ab \xff")
    with pytest.raises(PosexportError, match="no UTF-8 text"):
        train(corpus, 50)
    with pytest.raises(PosexportError, match=r"--vocab-size 17 is too small .* need 18"):
        train(corpus_of(TEXTBOOK, tmp_path), 17)
