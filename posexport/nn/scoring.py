"""Scoring functions of attention: the score of a query and a key before positions, scale and softmax.

Luong et al. (arXiv:1508.04025), section 3.1: ``dot`` q . k, ``general`` q . W k, ``concat`` w . [q; k] (without their
hyperbolic tangent, as in the tutorials); Bahdanau et al. (arXiv:1409.0473), appendix A.1.2: ``additive``
v . tanh(W q + U k). Every head has separate weights. Position terms read the queries that the function returns: for
``general`` these are ``W^T q``.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from posexport.encodings.encoding import Term
from posexport.encodings.positions import Positions
from posexport.ops.additive_scores import ADDITIVE_SCORES
from posexport.ops.concat_scores import CONCAT_SCORES
from posexport.ops.soft_cap_scores import SOFT_CAP_SCORES

Score = Literal["dot", "general", "concat", "additive"]


class Scoring(nn.Module):
    """``dot``: nothing to learn. Shapes: q [B, H, T, D], k [B, H, S, D]."""

    def queries(self, q_BHTD: Tensor) -> Tensor:
        """The queries that meet keys and position terms."""
        return q_BHTD

    def base(self, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term | None:
        """What replaces ``q k^T``, if anything does."""
        return None


class General(Scoring):
    """``q . W k``; ``weight`` [H, D, D] projects the queries."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.weight = _drawn(heads, size, size)

    def queries(self, q_BHTD: Tensor) -> Tensor:
        """Returns ``W^T q``."""
        return q_BHTD @ self.weight


class Concat(Scoring):
    """``w . [q; k]``; ``query_vector`` and ``key_vector`` [H, D] are w's halves."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.query_vector = _drawn(heads, size)
        self.key_vector = _drawn(heads, size)

    def base(self, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """A score of every query and one of every key, added."""
        of_keys_BHS = (k_BHSD @ self.key_vector[:, :, None])[..., 0]
        return Term(CONCAT_SCORES, (self.query_vector, of_keys_BHS), queries, keys)


class Additive(Scoring):
    """``v . tanh(W q + U k)``; ``query_weight`` and ``key_weight`` [H, D, D], ``vector`` [H, D]."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.query_weight = _drawn(heads, size, size)
        self.key_weight = _drawn(heads, size, size)
        self.vector = _drawn(heads, size)

    def base(self, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """Returns the term of the network over pairs."""
        return Term(ADDITIVE_SCORES, (self.query_weight, k_BHSD @ self.key_weight, self.vector), queries, keys)


class SoftCapped(Scoring):
    """``cap tanh(q . k / cap)``: products never exceed ``cap``; position terms are added after it."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def base(self, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term:
        """Products of query and key, capped."""
        cap_1 = torch.tensor([self.cap], dtype=k_BHSD.dtype, device=k_BHSD.device)
        return Term(SOFT_CAP_SCORES, (cap_1,), queries, keys)


def scoring(name: Score, heads: int, size: int) -> Scoring:
    """The scoring function called ``name`` for ``heads`` of ``size`` channels."""
    if name == "dot":
        return Scoring()
    return {"general": General, "concat": Concat, "additive": Additive}[name](heads, size)


def _drawn(*shape: int) -> nn.Parameter:
    """Scaled so that a product over D channels of size 1 has size 1."""
    return nn.Parameter(torch.empty(shape).normal_(std=1 / math.sqrt(shape[-1])))
