"""Vectors of texts, weights of their words and vectors of their tokens in one pass, and their scores (BGE-M3).

Chen et al., "M3-Embedding" (arXiv:2402.03216), section 3.2; names, special tokens and sums as in FlagEmbedding.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import TextRules
from posexport.errors import PosexportError
from posexport.run.batches import Batches, Floats
from posexport.run.embed import EMBEDDING
from posexport.run.late_interaction import maxsim
from posexport.run.texts import Texts

DENSE: Final = "dense"
SPARSE: Final = "sparse"
COLBERT: Final = "colbert"
ALL: Final = "all"
#: values of ``output_value`` that need weights and vectors of tokens
HYBRID = (SPARSE, COLBERT, ALL)
#: what the library calls each kind of values
KEYS = {DENSE: "dense_vecs", SPARSE: "lexical_weights", COLBERT: "colbert_vecs"}
_OUTPUTS = {DENSE: EMBEDDING, SPARSE: "sparse_vecs", COLBERT: "colbert_vecs"}

#: from the id of a token, as a str, to its weight
LexicalWeights = dict[str, float]
_MEAN = TextRules(similarity="meanmaxsim")


def outputs_of(output_value: str) -> dict[str, str]:
    """The outputs of the graph that ``output_value`` needs, by the kind of value."""
    return _OUTPUTS if output_value == ALL else {output_value: _OUTPUTS[output_value]}


def hybrid(
    run: Callable[[Mapping[str, NDArray[np.int64]]], Mapping[str, NDArray[Any]]],
    tokenizer: Texts,
    rows: Sequence[Any],
    unused_tokens: Sequence[str],
    batches: Batches,
) -> dict[str, list[Any]]:
    """By `KEYS` what the outputs of ``run`` give for each row of tokens.

    ``dense_vecs``: [elements]. ``lexical_weights``: of each id but ``unused_tokens``, its largest weight, if above 0.
    ``colbert_vecs``: [tokens - 1, elements], without the first token's.
    """
    unused = {tokenizer.token_id(token) for token in unused_tokens}
    results: dict[str, list[Any]] = {}
    for chosen in batches.places([len(row.ids) for row in rows]):
        outputs = run(tokenizer.padded([rows[place] for place in chosen]))
        for kind, name in _OUTPUTS.items():
            if name not in outputs:
                continue
            values = results.setdefault(KEYS[kind], [None] * len(rows))
            for place, value in zip(chosen, outputs[name], strict=True):
                ids = rows[place].ids
                start = tokenizer.start(len(value), len(ids))
                if kind == SPARSE:
                    value = lexical_weights(ids, value[start : start + len(ids), 0], unused)
                elif kind == COLBERT:
                    # a copy: a view would keep the whole batch
                    value = value[start + 1 : start + len(ids)].copy()
                values[place] = value
    return results


def lexical_weights(ids: Sequence[int], weights_T: Floats, unused: Iterable[int | None]) -> LexicalWeights:
    """The largest weight of each id that is not in ``unused``, if it is above 0."""
    largest: LexicalWeights = {}
    for number, weight in zip(ids, weights_T.tolist(), strict=True):
        if number not in unused and weight > largest.get(str(number), 0.0):
            largest[str(number)] = weight
    return largest


def lexical_score(query: LexicalWeights, document: LexicalWeights) -> float:
    """The sum, over the ids of both, of the products of their weights."""
    return sum(weight * document[number] for number, weight in query.items() if number in document)


def colbert_score(query_QC: Floats, document_TC: Floats) -> float:
    """The mean, over the vectors of the query, of the largest product with a vector of the document."""
    return float(maxsim(query_QC, [document_TC], _MEAN)[0])


_SCORES: Mapping[str, Callable[[Any, Any], float]] = {
    DENSE: lambda query_C, document_C: float(query_C @ document_C),
    SPARSE: lexical_score,
    COLBERT: colbert_score,
}


def pair_scores(kind: str, queries: Sequence[Any], documents: Sequence[Any]) -> Floats:
    """The scores of values of the same index, [queries]."""
    return np.array([_SCORES[kind](query, document) for query, document in zip(queries, documents, strict=True)])


def similarity(first: Any, second: Any, *, pairwise: bool = False) -> Floats | None:
    """The scores [first, second] of lexical weights, or of lists of vectors of tokens; None for other values.

    ``pairwise``: of values with the same index, [first].
    """
    queries, documents = ([side] if isinstance(side, Mapping) else side for side in (first, second))
    if not all(isinstance(side, list | tuple) and side for side in (queries, documents)):
        return None
    kinds = {_kind(value) for value in (*queries, *documents)}
    if not kinds & {SPARSE, COLBERT}:
        return None
    if len(kinds) > 1:
        raise PosexportError(
            f"these are {' and '.join(sorted(kinds))} values; give both sides as encode returns them for one "
            "output_value of dense, sparse and colbert"
        )
    (kind,) = kinds
    if not pairwise:
        return np.stack([pair_scores(kind, [query] * len(documents), documents) for query in queries])
    if len(queries) != len(documents):
        raise PosexportError(f"got {len(queries)} and {len(documents)} values where pairs are needed; give as many")
    return pair_scores(kind, queries, documents)


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        if KEYS[DENSE] in value:
            raise PosexportError("these are values of output_value='all'; give one of its keys, or use compute_score")
        return SPARSE
    return COLBERT if np.ndim(value) == 2 else DENSE


def weighted(scores: Mapping[str, Floats], weights: Sequence[float]) -> dict[str, Floats]:
    """``scores`` of the three kinds with their weighted means; ``weights``: of dense, sparse and colbert."""
    dense, sparse, colbert = (
        weight * scores[kind] for weight, kind in zip(weights, (DENSE, SPARSE, COLBERT), strict=True)
    )
    return {
        **scores,
        f"{SPARSE}+{DENSE}": (sparse + dense) / (weights[0] + weights[1]),
        f"{COLBERT}+{SPARSE}+{DENSE}": (colbert + sparse + dense) / sum(weights),
    }
