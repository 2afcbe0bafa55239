"""Prompts, pooling masks, truncation and normalisation of text embeddings, by the manifest's ``text_rules``."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.runtime.batches import Batches, Floats, Run
from posexport.runtime.texts import Texts, check_texts
from posexport.spec import PROMPT_MASK, InputSpec, PairRules, TextRules

EMBEDDING: Final = "sentence_embedding"
#: output of the hidden states that are pooled; sentence-transformers calls it token_embeddings
STATES = "last_hidden_state"
#: default prompts of every model
ALWAYS = {"query": "", "document": ""}
#: least divisor in `unit`, for vectors of length zero
_LEAST = 1e-12


def prompt_of(rules: TextRules | PairRules, prompt_name: str | None, prompt: str | None) -> str:
    """``prompt``, else the prompt called ``prompt_name``, else the default prompt.

    With both a warning says that ``prompt_name`` is ignored, as in sentence-transformers.

    Raises PosexportError for a name that the bundle does not know.
    """
    if prompt is not None and prompt_name is not None:
        warnings.warn(f"prompt {prompt!r:.40} is used and prompt_name {prompt_name!r:.40} ignored", stacklevel=3)
    name = rules.default_prompt if prompt_name is None else prompt_name
    if prompt is None and name is not None:
        prompts = (ALWAYS if isinstance(rules, TextRules) else {}) | rules.prompts
        if name not in prompts:
            known = ", ".join(rules.prompts) or "none"
            raise PosexportError(f"unknown prompt_name {name!r:.60}; this bundle has {known}; or give prompt")
        prompt = prompts[name]
    return prompt or ""


def prompted(texts: Sequence[str], prompt: str) -> list[str]:
    """Each text with ``prompt`` as its prefix."""
    check_texts(texts, "text")
    return [prompt + text for text in texts]


def pooled_run(run: Run, tokenizer: Texts, prompt: str, rules: TextRules, inputs: Sequence[InputSpec]) -> Run:
    """``run`` with the input ``prompt_mask``, if the rules exclude the prompt's tokens from the pooling.

    The mask covers the first tokens of each row: as many as the prompt alone has, truncated like texts, leading special
    tokens included (``SentenceTransformer._get_prompt_length`` since version 5). Raises PosexportError for a bundle
    without this input.
    """
    if not prompt or rules.prompt_pooled:
        return run
    if PROMPT_MASK not in [spec.name for spec in inputs]:
        raise PosexportError(
            f"this model leaves a prompt's tokens out of the pooling (include_prompt: false), and the bundle has no "
            f"input {PROMPT_MASK} to mark them; convert it again, or encode without the prompt {prompt!r:.40}"
        )
    count = tokenizer.prompt_length(prompt)

    def marked(feeds: Mapping[str, NDArray[np.int64]]) -> Floats:
        mask_BT = feeds["attention_mask"]
        prompt_BT = mask_BT * (mask_BT.cumsum(1) <= count)
        return run({**feeds, PROMPT_MASK: prompt_BT})

    return marked


def shortened(vectors_BC: Floats, rules: TextRules, truncate_dim: int | None, *, normalize: bool) -> Floats:
    """The first ``truncate_dim`` elements of each vector; with ``normalize`` divided by their length."""
    size = rules.truncate_dim if truncate_dim is None else truncate_dim
    if size is not None and size < 1:
        raise PosexportError(f"truncate_dim must be at least 1, got {size}; leave it out to keep all")
    vectors_BC = vectors_BC[:, :size]
    return unit(vectors_BC) if normalize else vectors_BC


def unit(vectors_BC: Floats) -> Floats:
    """Each vector divided by its length."""
    length_B1 = np.linalg.norm(vectors_BC, axis=-1, keepdims=True)
    unit_BC: Floats = vectors_BC / np.maximum(length_B1, _LEAST)
    return unit_BC


def states_of(run: Run, tokenizer: Texts, rows: Sequence[Any], batches: Batches) -> list[Floats]:
    """Hidden states of each row, [tokens, channels], without padding."""
    out: list[Floats] = [np.empty((0, 0))] * len(rows)
    for chosen in batches.places([len(row.ids) for row in rows]):
        values_BTC = run(tokenizer.padded([rows[place] for place in chosen]))
        for place, states_TC in zip(chosen, values_BTC, strict=True):
            count = len(rows[place].ids)
            start = tokenizer.start(len(states_TC), count)
            out[place] = states_TC[start : start + count]
    return out
