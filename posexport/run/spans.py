"""The offsets of tokens in a text, and vectors of spans of a text: late chunking.

Günther et al., "Late Chunking" (arXiv:2409.04701), section 3: the mean of the states of each span, computed from the
whole text, so that a span's vector depends on the text around it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.batches import Floats

#: first and last + 1 character of each token, [tokens, 2]; twice the same for special tokens
Offsets = NDArray[np.int64]


def offsets_of(encoding: Any, prefix: str) -> Offsets:
    """The offsets of a tokenized text after a prompt; tokens of the prompt have 0 and 0, as special tokens have."""
    offsets_T2 = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    return np.maximum(offsets_T2 - len(prefix), 0)


def late_chunks(
    states: Sequence[Floats], offsets: Sequence[Offsets], spans: Sequence[Sequence[tuple[int, int]]]
) -> list[Floats]:
    """[spans, C] for each text: the mean of the states of each span's tokens: the last character is in the span.

    PosexportError for a span without tokens.
    """
    return [
        np.stack([_pooled(states_TC, offsets_T2, span, text=number) for span in listed])
        for number, (states_TC, offsets_T2, listed) in enumerate(zip(states, offsets, spans, strict=True))
    ]


def _pooled(states_TC: Floats, offsets_T2: Offsets, span: tuple[int, int], *, text: int) -> Floats:
    first_T, end_T = offsets_T2.T
    inside_T = (first_T < end_T) & (span[0] < end_T) & (end_T <= span[1])
    if not inside_T.any():
        raise PosexportError(
            f"span {span} of text {text} has no token that ends in it, and the model reads up to character "
            f"{end_T.max(initial=0)}; give spans of whole words, in texts within the model's limit"
        )
    mean_C: Floats = states_TC[inside_T].mean(0)
    return mean_C


def checked(spans: Any, texts: Sequence[str], *, single: bool) -> list[list[tuple[int, int]]]:
    """``spans`` as a list for each text; of a single text it is one list.

    PosexportError unless each text has one, of pairs of characters (start, end) in its bounds.
    """
    listed = [spans] if single else spans
    if not isinstance(listed, Sequence) or len(listed) != len(texts):
        raise PosexportError(f"spans must be a list of (start, end) for each of {len(texts)} texts, got {spans!r:.80}")
    for number, (pairs, text) in enumerate(zip(listed, texts, strict=True)):
        if not isinstance(pairs, Sequence) or not len(pairs):
            raise PosexportError(
                f"text {number} has no list of spans, got {pairs!r:.60}; give (start, end), in characters"
            )
        for pair in pairs:
            if not _is_span(pair) or not 0 <= pair[0] < pair[1] <= len(text):
                raise PosexportError(
                    f"{pair!r:.60} is no span of text {number}; give (start, end), in characters from 0 to {len(text)}"
                )
    return [[(int(start), int(end)) for start, end in pairs] for pairs in listed]


def _is_span(pair: Any) -> bool:
    return isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(place, int | np.integer) for place in pair)
