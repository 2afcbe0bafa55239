"""A tokenizer.json that is made of a vocabulary file has all of its entries, or the bundle takes ids only."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models

from posexport.run.tokenizer import library
from posexport.run.tokenizer.entries import byte_letters, entries
from posexport.run.tokenizer.make import Model, TokenizerFile, make_tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "c", "C", "(", "##O", "=", "[nH]"]


def made(folder: Path) -> TokenizerFile:
    return make_tokenizer({path.name: path for path in folder.iterdir()}, Model())


def of(vocabulary: dict[str, int]) -> Callable[[Path, object], object]:
    """A library whose tokenizer has these words, whatever the folder has."""
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    return lambda *_: SimpleNamespace(backend_tokenizer=tokenizer)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "is_installed", lambda: True)
    monkeypatch.setattr("posexport.run.tokenizer.make.compare", lambda *_: None)


@pytest.mark.parametrize("kind", ["vocab.txt", "vocab.json"])
def test_a_library_that_loses_words_gives_no_tokenizer(kind: str, tmp_path: Path, monkeypatch) -> None:
    ids = {word: number for number, word in enumerate(WORDS)}
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    (tmp_path / kind).write_text("\n".join(WORDS) + "\n" if kind == "vocab.txt" else json.dumps(ids))
    for vocabulary in ({"<pad>": 0, "[UNK]": 1}, {word: -number + 20 for word, number in ids.items()}):
        monkeypatch.setattr(library, "load", of(vocabulary))
        result = made(tmp_path)
        assert (result.data, result.checked) == (None, None)
        (said,) = result.remarks
        assert f"makes of {kind} lacks" in said
        assert "the bundle takes ids only; for texts convert with --tokenizer FILE" in said
    monkeypatch.setattr(library, "load", of(ids))
    assert made(tmp_path).data is not None


def test_a_vocabulary_is_read_by_the_class_that_has_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    tokenizer = Tokenizer.from_buffer(made(tmp_path).data)
    assert [tokenizer.token_to_id(word) for word in WORDS] == [*range(len(WORDS))]


def test_pieces_keep_their_order(tmp_path: Path) -> None:
    """Classes with fairseq's special tokens first have the pieces under other ids, all moved by the same number."""
    spm = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    texts = iter(["the quick brown fox", "jumps over the lazy dog"])
    options = {"vocab_size": 40, "hard_vocab_limit": False, "minloglevel": 3}
    spm.SentencePieceTrainer.train(sentence_iterator=texts, model_writer=model, **options)
    (tmp_path / "spiece.model").write_bytes(model.getvalue())
    stored = entries(tmp_path / "spiece.model")
    assert stored is not None
    assert len(stored.ids) > 20
    assert not {"<unk>", "<s>", "</s>"} & set(stored.ids)
    ids = stored.ids
    assert stored.lost({piece: number + 1 for piece, number in ids.items()}) == []
    first, second, *_ = ids
    assert stored.lost({**ids, first: ids[second], second: ids[first]}) == [first, second]
    assert stored.lost({}) == [*ids]


def test_tokens_of_tiktoken(tmp_path: Path) -> None:
    lines = [base64.b64encode(token) + f" {rank}".encode() for rank, token in enumerate([b"a", b" ", b"\xff", b" a"])]
    (tmp_path / "tokenizer.model").write_bytes(b"\n".join(lines))
    stored = entries(tmp_path / "tokenizer.model")
    assert stored is not None
    assert stored.ids == {"a": 0, "Ġ": 1, "ÿ": 2, "Ġa": 3}
    assert stored.lost({**stored.ids, "a": 4}) == ["a"]
    assert len({*byte_letters().values()}) == 256


def test_other_files_have_no_entries(tmp_path: Path) -> None:
    for name, data in (("merges.txt", b"a b"), ("vocab.json", b"[1]"), ("vocab.json", b"{"), ("source.spm", b"x")):
        (tmp_path / name).write_bytes(data)
        assert entries(tmp_path / name) is None
