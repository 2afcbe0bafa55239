"""The comparison of a bundle's tokenizer with a library's, where one of them fails on a text."""

from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from posexport.tokenizer.compare import _different, _ids


def tokenizer(unknown: str | None) -> Tokenizer:
    """Words ``a`` and ``b``; without an unknown token, other words are an error."""
    vocabulary = {"a": 0, "b": 1} | ({unknown: 2} if unknown else {})
    made = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown or "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def library(made: Tokenizer) -> Any:
    return lambda *texts: {"input_ids": made.encode(*texts).ids}


def test_a_text_that_one_of_both_refuses_is_a_difference() -> None:
    whole, lacking = tokenizer("[UNK]"), tokenizer(None)
    texts, pairs = ["a b", "a c"], [("a", "c"), ("a", "b")]
    assert _different(whole, library(whole), texts, pairs) == []
    assert [item for item, *_ in _different(whole, library(lacking), texts, pairs)] == ["a c", ("a", "c")]
    assert [item for item, *_ in _different(lacking, library(whole), texts, pairs)] == ["a c", ("a", "c")]
    assert _different(lacking, library(lacking), texts, pairs) == []  # neither has ids


def test_a_panic_of_the_library_is_an_error_of_a_text() -> None:
    class PanicError(BaseException):
        """As Rust's panics come to Python."""

    def panics(text: str) -> list[int]:
        raise PanicError(f"no entry found for {text}")

    assert _ids(panics, "key") == "no entry found for key"
