"""Quantized embeddings, computed as in sentence-transformers' ``quantize_embeddings``."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError

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
