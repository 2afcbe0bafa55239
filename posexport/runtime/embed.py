"""Vectors of texts, by the rules that a bundle of sentence-transformers records."""

from collections.abc import Sequence

import numpy as np

from posexport.errors import PosexportError
from posexport.runtime.batches import Floats
from posexport.runtime.texts import check_texts
from posexport.spec import TextRules

EMBEDDING = "sentence_embedding"
#: what a vector without length is divided by
_LEAST = 1e-12


def prompted(texts: Sequence[str], rules: TextRules, prompt_name: str | None, prompt: str | None) -> list[str]:
    """Texts behind the prompt that is asked for, or behind the default one.

    Raises PosexportError for a name that the bundle does not know, and for a prompt whose tokens its pooling leaves
    out.
    """
    check_texts(texts, "text")
    if prompt is not None and prompt_name is not None:
        raise PosexportError(f"prompt {prompt!r:.40} and prompt_name {prompt_name!r:.40} exclude each other; give one")
    name = rules.default_prompt if prompt_name is None else prompt_name
    if prompt is None and name is not None:
        if name not in rules.prompts:
            known = ", ".join(rules.prompts) or "none"
            raise PosexportError(f"unknown prompt_name {name!r:.60}; this bundle has {known}; or give prompt")
        prompt = rules.prompts[name]
    if not prompt:
        return list(texts)
    if not rules.prompt_pooled:
        raise PosexportError(
            f"this model leaves a prompt's tokens out of the pooling (include_prompt: false), which the bundle does "
            f"not compute; encode without the prompt {prompt!r:.40}"
        )
    return [prompt + text for text in texts]


def shortened(vectors_BC: Floats, rules: TextRules, truncate_dim: int | None, *, normalize: bool) -> Floats:
    """The first ``truncate_dim`` elements of each vector, of length 1 if asked."""
    kept = rules.truncate_dim if truncate_dim is None else truncate_dim
    if kept is not None and kept < 1:
        raise PosexportError(f"truncate_dim must be at least 1, got {kept}; leave it out to keep all")
    vectors_BC = vectors_BC[:, :kept]
    if not normalize:
        return vectors_BC
    length_B1 = np.linalg.norm(vectors_BC, axis=-1, keepdims=True)
    unit_BC: Floats = vectors_BC / np.maximum(length_B1, _LEAST)
    return unit_BC
