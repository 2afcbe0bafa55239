"""Similarity functions of vectors, by sentence-transformers' names (``similarity_fn_name``)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.runtime.batches import Floats
from posexport.runtime.embed import unit
from posexport.runtime.late_interaction import maxsim
from posexport.spec import TextRules


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
        array = np.asarray(vectors)
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
