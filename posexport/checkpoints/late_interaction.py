"""Reads what makes a model one of late interaction: a vector for each token, compared by MaxSim (ColBERT).

Three kinds of folders: colbert-ai's (class ``HF_ColBERT``, the projection among the transformer's weights, rules in
``artifact.metadata``), PyLate's (``modules.json`` without a pooling, rules in config_sentence_transformers.json) and
folders of sentence-transformers 6 (``MultiVectorMask`` among the modules, rules with each module).
"""

import string
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from posexport.base.spec import TextRules, TokenRules
from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.pooling import Pooling, Step
from posexport.checkpoints.text_rules import (
    ALWAYS,
    SETTINGS,
    max_length,
    optional,
    prompts_of,
    rule_files,
    texts_config,
)
from posexport.errors import PosexportError
from posexport.nn.pooling import DenseConfig

METADATA = "artifact.metadata"
ARCHITECTURE = "HF_ColBERT"
MASK_MODULE = "MultiVectorMask"
#: keys of config_sentence_transformers.json by which PyLate's rules are known
_PYLATE = ("query_prefix", "document_prefix", "query_length", "document_length", "do_query_expansion", "skiplist_words")
#: tokens of a query in the papers and the libraries
_QUERY_LENGTH = 32


def of_colbert(directory: Directory, config: Config) -> Pooling:
    """A checkpoint of colbert-ai: what its ``artifact.metadata`` says, and its defaults where there is none."""
    metadata = optional(directory, METADATA) or Config(directory, "config.json")
    metadata.only("vectors are compared by their cosine", similarity="cosine")
    has_metadata = metadata.label.endswith(METADATA)
    tokens = TokenRules(
        query_marker=metadata.text("query_token_id", "[unused0]"),
        document_marker=metadata.text("doc_token_id", "[unused1]"),
        query_length=metadata.size("query_maxlen", _QUERY_LENGTH),
        document_length=metadata.size_or_none("doc_maxlen"),
        filled_to=metadata.size("query_maxlen", _QUERY_LENGTH),
        filler=_filler(directory, ""),
        filler_attended=metadata.flag("attend_to_mask_tokens", False),
        skipped=list(string.punctuation) if metadata.flag("mask_punctuation", True) else [],
    )
    dense = DenseConfig(inner=config.size("hidden_size"), outer=metadata.size("dim", 128), bias=False)
    return Pooling(
        modes=(),
        steps=[Step(dense=dense)],
        width=dense.inner,
        width_key="hidden_size",
        label=config.label,
        rules=TextRules(max_length=max_length(directory, ""), similarity="maxsim", tokens=tokens),
        files=[METADATA] if has_metadata else [],
    )


def of_modules(
    directory: Directory, modules: Sequence[tuple[str, str]], steps: Sequence[Step], files: Sequence[str]
) -> Pooling:
    """A ``modules.json`` without a pooling: names of its modules with their folders, and its projections."""
    below = modules[0][1]
    dense = [step for step in steps if step.dense is not None]
    first = dense[0].dense
    assert first is not None
    mask = next((Config(directory, f"{folder}config.json") for name, folder in modules if name == MASK_MODULE), None)
    # the rules of tokens, by the settings of PyLate or of sentence-transformers
    settings = optional(directory, SETTINGS)
    texts = texts_config(directory, below)
    filler = _filler(directory, below)
    pylate = settings is not None and any(key in settings.values for key in _PYLATE)
    tokens = _pylate(settings, filler) if pylate and settings is not None else _native(texts, filler)
    if mask is not None:
        tokens = _masked(tokens, mask)
    elif not pylate:
        tokens = msgspec.structs.replace(tokens, skipped=list(string.punctuation))
    return Pooling(
        modes=(),
        steps=dense,
        width=first.inner,
        width_key="in_features",
        label=f"{directory.path}/{dense[0].folder}config.json",
        rules=TextRules(
            max_length=max_length(directory, below),
            lower_case=texts is not None and texts.flag("do_lower_case", False),
            prompts=prompts_of(settings, always=ALWAYS)[0],
            similarity=_similarity(settings),
            tokens=tokens,
        ),
        below=below,
        files=[*files, *rule_files(directory, below)],
    )


def _pylate(settings: Config, filler: str) -> TokenRules:
    """What PyLate writes (``ColBERT.save``), with its defaults."""
    length = settings.size_or("query_length", _QUERY_LENGTH)
    words = settings.values.get("skiplist_words")
    return TokenRules(
        query_marker=settings.text("query_prefix", ""),
        document_marker=settings.text("document_prefix", ""),
        query_length=length,
        document_length=settings.size_or_none("document_length"),
        filled_to=length if settings.flag("do_query_expansion", True) else None,
        filler=filler,
        filler_attended=settings.flag("attend_to_expansion_tokens", False),
        skipped=_words(settings, string.punctuation if words is None else words),
    )


def _native(texts: Config | None, filler: str) -> TokenRules:
    """The rules in the files that sentence-transformers 6 writes next to the transformer."""
    if texts is None:
        return TokenRules(filler=filler)
    expansion = texts.values.get("query_expansion")
    query_length = texts.size_or_none("query_length")
    if expansion is None:
        return TokenRules(
            query_length=query_length, document_length=texts.size_or_none("document_length"), filler=filler
        )
    length = expansion.get("length") if isinstance(expansion, Mapping) else None
    strategy = expansion.get("strategy") if isinstance(expansion, Mapping) else None
    if strategy not in ("fixed", "min") or not isinstance(length, int) or length < 1:
        raise PosexportError(
            f"{texts.label} says query_expansion = {expansion!r:.120}; it must have a strategy (fixed or min) and a "
            "length of at least 1"
        )
    longest = length if strategy == "fixed" else None if query_length is None else max(query_length, length)
    return TokenRules(
        query_length=longest,
        document_length=texts.size_or_none("document_length"),
        filled_to=length,
        filler=expansion.get("token") or filler,
        filler_attended=expansion.get("attend") is True,
    )


def _masked(tokens: TokenRules, mask: Config) -> TokenRules:
    """The rules, extended by a ``MultiVectorMask``."""
    tasks = mask.values.get("skiplist_tasks", ["document"])
    if tasks not in (["document"], ["query", "document"], ["document", "query"]):
        raise PosexportError(
            f"{mask.label} says skiplist_tasks = {tasks!r:.60}; only document, with or without query, is read"
        )
    mask.only("every token that is not skipped has a vector", keep_only_token_ids=None)
    words = _words(mask, mask.values.get("skiplist_words", []))
    return msgspec.structs.replace(tokens, skipped=words, skipped_in_queries="query" in tasks)


def _words(config: Config, words: Any) -> list[str]:
    if not isinstance(words, str | list) or not all(isinstance(word, str) for word in words):
        raise PosexportError(f"{config.label} says skiplist_words = {words!r:.60}; it must be a list of tokens")
    return list(words)


def _similarity(settings: Config | None) -> str:
    """MaxSim, unless its mean over the query's tokens is named; other names are of models that these began as."""
    named = None if settings is None else settings.values.get("similarity_fn_name")
    return "meanmaxsim" if named == "meanmaxsim" else "maxsim"


def _filler(directory: Directory, below: str) -> str:
    """The tokenizer's mask token, else the one that ends texts, as PyLate takes them."""
    tokenizer = optional(directory, f"{below}tokenizer_config.json")
    stated = [] if tokenizer is None else [tokenizer.values.get(f"{kind}_token") for kind in ("mask", "eos")]
    tokens = [token.get("content") if isinstance(token, dict) else token for token in stated]
    return next((token for token in tokens if isinstance(token, str)), "[MASK]")
