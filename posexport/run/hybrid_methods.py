"""The scores of pairs of texts by vectors of texts, weights of words and vectors of tokens (BGE-M3)."""

from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from posexport.errors import PosexportError
from posexport.run.call_forms import as_pairs
from posexport.run.hybrid import ALL, COLBERT, DENSE, KEYS, SPARSE, pair_scores, weighted
from posexport.run.vectors import Encoding, VectorMethods

_KINDS = (COLBERT, SPARSE, DENSE)


class HybridMethods(VectorMethods):
    """Scores with the signature of ``BGEM3FlagModel``."""

    def compute_score(
        self,
        sentence_pairs: Iterable[tuple[str, str]] | tuple[str, str],
        batch_size: int | None = None,
        weights_for_different_modes: Sequence[float] | None = None,
        **extra: Unpack[Encoding],
    ) -> dict[str, Any]:
        """Scores pairs of texts in three ways and by two weighted means, as ``BGEM3FlagModel.compute_score`` does.

        Returns lists of scores by ``colbert``, ``sparse``, ``dense``, ``sparse+dense`` and ``colbert+sparse+dense``;
        for a single pair floats. Each text is read once.

        Args:
            sentence_pairs: a pair (query, passage), or pairs.
            batch_size: maximum texts of one call; None: as many as ``batch_tokens`` allow.
            weights_for_different_modes: of dense, sparse and ColBERT scores; None: 1 each.
            extra: ``batch_tokens`` and ``progress`` as in `encode`.

        Raises:
            PosexportError: a bundle without weights and vectors of tokens, or weights that do not fit.
        """
        pairs, single = as_pairs(sentence_pairs)
        weights = [1.0] * len(_KINDS) if weights_for_different_modes is None else list(weights_for_different_modes)
        if len(weights) != len(_KINDS) or weights[0] + weights[1] == 0 or sum(weights) == 0:
            raise PosexportError(
                f"weights_for_different_modes must be three numbers, of dense, sparse and ColBERT scores, whose sums "
                f"are not 0, got {weights!r:.60}"
            )
        place = {text: number for number, text in enumerate(dict.fromkeys(text for pair in pairs for text in pair))}
        values = self.encode(list(place), batch_size=batch_size, output_value=ALL, **extra)
        assert isinstance(values, dict)
        scores = {}
        for kind in _KINDS:
            queries, passages = ([values[KEYS[kind]][place[pair[side]]] for pair in pairs] for side in (0, 1))
            scores[kind] = pair_scores(kind, queries, passages)
        totals = {kind: total.tolist() for kind, total in weighted(scores, weights).items()}
        return {kind: total[0] for kind, total in totals.items()} if single else totals
