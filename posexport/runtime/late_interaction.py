"""A vector for each token of a text, and documents compared with a query by MaxSim.

Khattab and Zaharia, "ColBERT" (arXiv:2004.12832), section 3: each vector of a query goes with the most similar one of
the document, and the score is the sum over the query. A query is filled up with tokens that others do not attend to and
whose vectors count all the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posexport.errors import PosexportError
from posexport.runtime.batches import Batches, Floats, Run
from posexport.runtime.texts import Texts, check_texts
from posexport.spec import TextRules, TokenRules

TOKEN_EMBEDDINGS = "token_embeddings"
QUERY, DOCUMENT = "query", "document"
#: the score of a document without a vector: below every other
_NOTHING = -1e30


@dataclass(frozen=True)
class Row:
    """A text as the graph reads it; ``counts``: which of its tokens have a vector in the end."""

    ids: list[int]
    type_ids: list[int]
    attention_mask: list[int]
    counts: list[bool]


def role_of(prompt_name: str | None) -> str:
    """``query`` or ``document``, the latter where none is named."""
    if prompt_name not in (None, QUERY, DOCUMENT):
        raise PosexportError(
            f"unknown prompt_name {prompt_name!r:.60}; a model with a vector for each token has {QUERY} and {DOCUMENT}"
        )
    return prompt_name or DOCUMENT


def token_vectors(
    run: Run,
    tokenizer: Texts,
    texts: Sequence[str],
    rules: TextRules,
    *,
    role: str,
    prompt: str | None,
    batches: Batches,
) -> list[Floats]:
    """For each text [tokens, elements]; ``prompt``: a text before each, in place of the role's own."""
    assert rules.tokens is not None
    check_texts(texts, "text")
    before = rules.prompts.get(role, "") if prompt is None else prompt
    rows = _rows(tokenizer, [before + text for text in texts], rules.tokens, role)
    out: list[Floats] = [np.empty((0, 0))] * len(rows)
    for chosen in batches.places([len(row.ids) for row in rows]):
        values_BTC = run(tokenizer.padded([rows[place] for place in chosen]))
        for place, vectors_TC in zip(chosen, values_BTC, strict=True):
            start = tokenizer.start(len(vectors_TC), len(rows[place].ids))
            out[place] = vectors_TC[start : start + len(rows[place].ids)][rows[place].counts]
    return out


def maxsim(query_QC: Floats, documents: Sequence[Floats], rules: TextRules) -> Floats:
    """The score of each document, [documents]."""
    scores = [float((query_QC @ doc_TC.T).max(1).sum()) if len(doc_TC) else _NOTHING for doc_TC in documents]
    total: Floats = np.array(scores, dtype=query_QC.dtype)
    return total / len(query_QC) if rules.similarity == "meanmaxsim" else total


def _rows(tokenizer: Texts, texts: Sequence[str], tokens: TokenRules, role: str) -> list[Row]:
    query = role == QUERY
    marker = tokens.query_marker if query else tokens.document_marker
    length = tokens.query_length if query else tokens.document_length
    inserted = [] if not marker else [_marker_id(tokenizer, marker)]
    skipped = _ids(tokenizer, tokens.skipped) if not query or tokens.skipped_in_queries else set()
    fill = tokens.filled_to if query else None
    filler = 0 if fill is None else _known(tokenizer, tokens.filler)
    rows = []
    for read in tokenizer.cut_rows(texts, length, leaving=len(inserted)):
        ids = [*read.ids[:1], *inserted, *read.ids[1:]]
        types = [*read.type_ids[:1], *([0] * len(inserted)), *read.type_ids[1:]]
        missing = max(0, (fill or 0) - len(ids))
        rows.append(
            Row(
                ids=ids + [filler] * missing,
                type_ids=types + [0] * missing,
                attention_mask=[1] * len(ids) + [int(tokens.filler_attended)] * missing,
                counts=[number not in skipped for number in ids] + [True] * missing,
            )
        )
    return rows


def _marker_id(tokenizer: Texts, marker: str) -> int:
    """Of the marker as it is written, or, as PyLate writes a space behind it, of its first word."""
    whole = tokenizer.token_id(marker)
    return _known(tokenizer, marker.split()[0] if marker.split() else marker) if whole is None else whole


def _known(tokenizer: Texts, token: str) -> int:
    number = tokenizer.token_id(token)
    if number is None:
        raise PosexportError(
            f"the tokenizer has no token {token!r}, which this model puts into texts; convert it again with the "
            "tokenizer.json that belongs to it"
        )
    return number


def _ids(tokenizer: Texts, tokens: Sequence[str]) -> set[int]:
    """Those that the tokenizer has."""
    return {number for token in tokens if (number := tokenizer.token_id(token)) is not None}
