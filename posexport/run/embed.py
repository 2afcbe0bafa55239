"""Text embeddings by the manifest's ``text_rules``, their precisions and similarity functions."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import PROMPT_MASK, InputSpec, PairRules, TextRules
from posexport.errors import PosexportError
from posexport.run.batches import Batches, Floats, Run
from posexport.run.late_interaction import maxsim
from posexport.run.texts import Texts, check_texts

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


T = TypeVar("T")


def pooled_run(
    run: Callable[[Mapping[str, NDArray[np.int64]]], T],
    tokenizer: Texts,
    prompt: str,
    rules: TextRules,
    inputs: Sequence[InputSpec],
) -> Callable[[Mapping[str, NDArray[np.int64]]], T]:
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

    def marked(feeds: Mapping[str, NDArray[np.int64]]) -> T:
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


EmbeddingPrecision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
PRECISIONS: tuple[EmbeddingPrecision, ...] = get_args(EmbeddingPrecision)
#: quantization steps in the range of an element
_STEPS = 255


def check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise PosexportError(f"precision {precision!r:.60} is not known; choose one of {', '.join(PRECISIONS)}")


def quantized(vectors_BC: NDArray[Any], precision: EmbeddingPrecision) -> NDArray[Any]:
    """Quantizes vectors [B, C].

    ``int8`` and ``uint8``: the range of each element is its minimum and maximum over these vectors. ``binary`` and
    ``ubinary``: a bit for each element above 0, eight to a byte, [B, ceil(C / 8)].
    """
    return vectors_BC if precision == "float32" else _quantized(vectors_BC, precision, _range(vectors_BC, precision))


def quantized_rows(rows: Sequence[NDArray[Any]], precision: EmbeddingPrecision) -> list[NDArray[Any]]:
    """Quantizes token vectors, [tokens, elements] for each text; all texts share the ranges."""
    if precision == "float32" or not rows:
        return list(rows)
    limits_2C = _range(np.concatenate(rows), precision)
    return [_quantized(row_TC, precision, limits_2C) for row_TC in rows]


def _range(vectors_BC: NDArray[Any], precision: EmbeddingPrecision) -> NDArray[Any] | None:
    """Minimum and maximum of each element, [2, C]; None for precisions without ranges."""
    if precision not in ("int8", "uint8"):
        return None
    if len(vectors_BC) == 1:
        raise PosexportError(
            f"precision {precision!r} takes its ranges from the vectors themselves, and there is one only; encode "
            "several texts at once, or use float32 and quantize with known ranges"
        )
    return np.stack([vectors_BC.min(0), vectors_BC.max(0)])


def _quantized(vectors_BC: NDArray[Any], precision: EmbeddingPrecision, limits_2C: NDArray[Any] | None) -> NDArray[Any]:
    if limits_2C is None:
        bits: NDArray[Any] = np.packbits(vectors_BC > 0, axis=-1)
        return bits if precision == "ubinary" else np.asarray(bits - 128, np.int8)
    least_C, most_C = limits_2C.astype(np.float32)
    step_C = (most_C - least_C) / _STEPS
    step_C = np.where(step_C == 0, 1, step_C)
    level_BC = np.clip(np.floor((vectors_BC - least_C) / step_C), 0, _STEPS)
    return np.asarray(level_BC, np.uint8) if precision == "uint8" else np.asarray(level_BC - 128, np.int8)


def similarity(first: Any, second: Any, rules: TextRules) -> Floats:
    """Similarity of all pairs of the first and second vectors, [A, B]."""
    if rules.tokens is not None:
        queries, documents = _matrices(first), _matrices(second)
        return np.stack([maxsim(query, documents, rules) for query in queries])
    a_AC, b_BC = _arrays(first, second)
    if rules.similarity == "manhattan":
        return np.stack([-np.abs(a_C - b_BC).sum(-1) for a_C in a_AC])
    if rules.similarity == "euclidean":
        return np.stack([-np.linalg.norm(a_C - b_BC, axis=-1) for a_C in a_AC])
    if rules.similarity == "cosine":
        a_AC, b_BC = unit(a_AC), unit(b_BC)
    products: Floats = a_AC @ b_BC.T
    return products


def similarity_pairwise(first: Any, second: Any, rules: TextRules) -> Floats:
    """Similarity of the first vectors with the second vectors of the same index, [A]."""
    if rules.tokens is not None:
        queries, documents = _matrices(first), _matrices(second)
        _check_pairs(len(queries), len(documents))
        pairs = zip(queries, documents, strict=True)
        return np.array([maxsim(query, [document], rules)[0] for query, document in pairs], np.float32)
    a_AC, b_AC = _arrays(first, second)
    _check_pairs(len(a_AC), len(b_AC))
    return _PAIRWISE[rules.similarity](a_AC, b_AC)


_PAIRWISE: dict[str, Callable[[Floats, Floats], Floats]] = {
    "cosine": lambda a_AC, b_AC: (unit(a_AC) * unit(b_AC)).sum(-1),
    "dot": lambda a_AC, b_AC: (a_AC * b_AC).sum(-1),
    "euclidean": lambda a_AC, b_AC: -np.linalg.norm(a_AC - b_AC, axis=-1),
    "manhattan": lambda a_AC, b_AC: -np.abs(a_AC - b_AC).sum(-1),
}


def _arrays(first: Any, second: Any) -> tuple[Floats, Floats]:
    """Both as arrays [vectors, elements] with the same number of elements; a single vector becomes one row."""
    a_AC, b_BC = _array(first), _array(second)
    if a_AC.shape[1] != b_BC.shape[1]:
        raise PosexportError(
            f"vectors of {a_AC.shape[1]} and of {b_BC.shape[1]} elements have no similarity; give vectors of one "
            "model with the same truncate_dim"
        )
    return a_AC, b_BC


def _array(vectors: Any) -> Floats:
    try:
        array = np.asarray([*vectors] if isinstance(vectors, Iterator) else vectors)
    except ValueError as err:
        raise PosexportError(f"vectors must be one array [texts, elements]: {err}; give what encode returns") from err
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiu":
        raise PosexportError(
            f"vectors must be numbers [texts, elements], got {array.dtype} {list(array.shape)}; give encode's result"
        )
    # sums of 8-bit vectors would overflow
    array = array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)
    return np.atleast_2d(array)


def _matrices(vectors: Any) -> list[NDArray[Any]]:
    """Token vectors as a list of [tokens, elements]."""
    listed: Sequence[Any] = [vectors] if isinstance(vectors, np.ndarray) and vectors.ndim == 2 else list(vectors)
    return [_array(vectors_TC) for vectors_TC in listed]


def _check_pairs(first: int, second: int) -> None:
    if first != second:
        raise PosexportError(f"similarity_pairwise needs as many vectors on both sides, got {first} and {second}")
