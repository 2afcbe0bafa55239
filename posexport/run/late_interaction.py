"""Token embeddings of texts for late interaction, and MaxSim scores of documents.

Khattab and Zaharia, "ColBERT" (arXiv:2004.12832), section 3: the score is the sum, over the vectors of the query, of
the largest similarity with a vector of the document. A query is padded with mask tokens (query augmentation): other
tokens may not attend to them, but their vectors count.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posexport.base.spec import TextRules, TokenRules
from posexport.errors import PosexportError
from posexport.run.batches import Batches, Floats, Run
from posexport.run.texts import Texts, check_texts

TOKEN_EMBEDDINGS = "token_embeddings"
QUERY, DOCUMENT = "query", "document"
#: the score of a document without vectors: below every other score
_NOTHING = -1e30


@dataclass(frozen=True)
class TokenizedText:
    """The ids of a text; ``counts``: True for tokens that have a vector in the result."""

    ids: list[int]
    type_ids: list[int]
    attention_mask: list[int]
    counts: list[bool]


def role_of(prompt_name: str | None) -> str:
    """The role ``query`` or ``document`` that ``prompt_name`` means; ``document`` by default."""
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
    """The vectors of each text, [tokens, elements]; ``prompt`` replaces the prompt of the role."""
    assert rules.tokens is not None
    check_texts(texts, "text")
    prefix = rules.prompts.get(role, "") if prompt is None else prompt
    return of_rows(run, tokenizer, _rows(tokenizer, [prefix + text for text in texts], rules.tokens, role), batches)


def of_rows(run: Run, tokenizer: Texts, rows: Sequence[TokenizedText], batches: Batches) -> list[Floats]:
    """The vectors of each tokenized text, [tokens, elements], without those of padding."""
    out: list[Floats] = [np.empty((0, 0))] * len(rows)
    for chosen in batches.places([len(text.ids) for text in rows]):
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


def _rows(tokenizer: Texts, texts: Sequence[str], tokens: TokenRules, role: str) -> list[TokenizedText]:
    query = role == QUERY
    marker = tokens.query_marker if query else tokens.document_marker
    length = tokens.query_length if query else tokens.document_length
    inserted = [] if not marker else [_marker_id(tokenizer, marker)]
    skipped = _ids(tokenizer, tokens.skipped) if not query or tokens.skipped_in_queries else set()
    fill = tokens.filled_to if query else None
    filler = 0 if fill is None else _known(tokenizer, tokens.filler)
    rows = []
    for text in tokenizer.cut_rows(texts, length, leaving=len(inserted)):
        ids = [*text.ids[:1], *inserted, *text.ids[1:]]
        types = [*text.type_ids[:1], *([0] * len(inserted)), *text.type_ids[1:]]
        missing = max(0, (fill or 0) - len(ids))
        rows.append(
            TokenizedText(
                ids=ids + [filler] * missing,
                type_ids=types + [0] * missing,
                attention_mask=[1] * len(ids) + [int(tokens.filler_attended)] * missing,
                counts=[token not in skipped for token in ids] + [True] * missing,
            )
        )
    return rows


def _marker_id(tokenizer: Texts, marker: str) -> int:
    """The id of the marker, or of its first word: PyLate appends a space to markers."""
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
    return {number for token in tokens if (number := tokenizer.token_id(token)) is not None}
