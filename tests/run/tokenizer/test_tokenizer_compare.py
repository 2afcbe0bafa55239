"""The comparison of a bundle's tokenizer with a library's: ids, mask and token types, and texts on which one fails."""

from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from posexport.run.tokenizer import compare
from posexport.run.tokenizer.settings import Settings


def tokenizer(unknown: str | None) -> Tokenizer:
    """Words ``a`` and ``b``; without an unknown token, other words are an error."""
    vocabulary = {"a": 0, "b": 1} | ({unknown: 2} if unknown else {})
    made = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown or "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def settings(name: str, **facts: bool) -> Settings:
    made = Settings(name, {"tokenizer_class": name}, {})
    made.takes_types, made.takes_pairs = facts.get("types", False), facts.get("pairs", True)
    return made


def different(bundle: Tokenizer, library: Any, rules: Settings) -> list[tuple[Any, Any, Any]]:
    inputs = ["a b", "a c", ("a", "c"), ("a", "b")]
    rows = compare._bundle_rows(bundle, rules), compare._library_rows(library, rules)
    return compare._different(*rows, inputs)


def ids_of(made: Tokenizer) -> Any:
    return lambda *texts: {"input_ids": made.encode(*texts).ids}


def test_a_text_that_one_of_both_refuses_is_a_difference() -> None:
    whole, lacking, rules = tokenizer("[UNK]"), tokenizer(None), settings("BertTokenizer")
    assert different(whole, ids_of(whole), rules) == []
    for bundle, library in ((whole, lacking), (lacking, whole)):
        assert [item for item, *_ in different(bundle, ids_of(library), rules)] == ["a c", ("a", "c")]
    assert different(lacking, ids_of(lacking), rules) == []  # neither has ids


def test_a_panic_of_the_library_is_an_error_of_a_text() -> None:
    class PanicError(BaseException):
        """As Rust's panics come to Python."""

    def panics(text: str) -> list[int]:
        raise PanicError(f"no entry found for {text}")

    assert compare._result(panics, "key") == "no entry found for key"


def test_token_types_are_compared_where_the_model_takes_them() -> None:
    """transformers 5 gives none for a folder that 4.57 wrote with its generic class."""
    pairs = tokenizer("[UNK]")
    pairs.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    rules = settings("PreTrainedTokenizerFast", types=True)
    found = different(pairs, ids_of(pairs), rules)
    assert [item for item, *_ in found] == [("a", "c"), ("a", "b")]
    (said,) = compare._sentences("transformers 5.24.0 (TokenizersBackend)", found, 4, rules)
    assert said == (
        "transformers 5.24.0 (TokenizersBackend) gives other token_type_ids than the bundle, which follows "
        'transformers 4.57 there, for 2 of 4 texts and pairs, such as ["a", "c"]: [0, 0], in the bundle [0, 1]'
    )
    for same in (settings("TokenizersBackend", types=True), settings("PreTrainedTokenizerFast")):
        assert different(pairs, ids_of(pairs), same) == []
    assert different(pairs, ids_of(pairs), settings("PreTrainedTokenizerFast", types=True, pairs=False)) == []


def test_a_mask_is_compared() -> None:
    whole, rules = tokenizer("[UNK]"), settings("BertTokenizer")
    found = different(whole, lambda *texts: {**ids_of(whole)(*texts), "attention_mask": [0, 1]}, rules)
    (said,) = compare._sentences("transformers", found, 4, rules)
    assert said.startswith("transformers gives another attention_mask than the bundle")
