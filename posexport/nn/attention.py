"""Scaled dot-product attention with position terms.

Luong et al. (arXiv:1508.04025), section 3.1: ``dot`` q . k, ``general`` q . W k, ``concat`` w . [q; k] (without their
hyperbolic tangent, as in the tutorials); Bahdanau et al. (arXiv:1409.0473), appendix A.1.2: ``additive``
v . tanh(W q + U k). Every head has separate weights. Position terms read the queries that the function returns: for
``general`` these are ``W^T q``.

Shape letters: B batch, H heads, T queries, S keys, D head size.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.encodings.encoding import Term
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.graph.ops.additive_scores import ADDITIVE_SCORES
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.concat_scores import CONCAT_SCORES
from posexport.graph.ops.soft_cap_scores import SOFT_CAP_SCORES
from posexport.graph.ops.spec import emit
from posexport.graph.ops.tracing import traced_as
from posexport.nn.collected import Kind, attended

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


#: scores in memory at a time in inference mode: 8 MB in float64
_MOST_SCORES = 1 << 20


def attend(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    scores: Term | None = None,
    values: Term | None = None,
    base: Term | None = None,
    causal: tuple[Positions, Positions] | None = None,
    buffers: tuple[Tensor, Tensor] | None = None,
    sink: Tensor | None = None,
    dropout: float = 0.0,
    kind: Kind = "attentions",
) -> Tensor:
    """``softmax(scale * (q k^T + scores) + mask) v + values``; [B, H, T, D].

    ``k_BHSD`` and ``v_BHSD`` may have fewer heads, which groups of the queries' heads then share (Ainslie et al.,
    arXiv:2305.13245): they are not copied for each of them.

    Scores of an operator that is not ``scaled`` are added after the scale; ``base`` replaces q k^T.

    ``mask`` is added: 0 keeps, `dropped_score` drops; [B, 1, 1, S] or [B, 1, T, S]. ``causal``: the positions of
    queries and keys; keys after the query, by their slots, are dropped. ``buffers``: the static KV cache with
    ``k_BHSD`` and ``v_BHSD`` as its first slots, for a graph that need not copy them. ``sink``: [H], a score of every
    head that takes part in the softmax and has no value (OpenAI, gpt-oss, released code; after Xiao et al.,
    arXiv:2309.17453). ``kind``: what its probabilities are called where a call collects them.

    While ``torch.onnx.export`` traces, attention becomes one node of domain ``posexport``; a lowering writes its body.
    """
    terms = {"base": base, "scores": scores, "values": values}
    if any(term is not None and "k" in term.operator.takes for term in terms.values()):
        k_BHSD, v_BHSD = shared(k_BHSD, q_BHTD.shape[1]), shared(v_BHSD, q_BHTD.shape[1])
    if scores is not None:
        if base is not None and scores.content_bias is not None:
            raise PosexportError(
                f"a content bias, as Transformer-XL has it, is a part of q k^T, which {base.operator.name} replaces; "
                "use score=dot or score=general and no cap of the scores"
            )
        q_BHTD, scores = scores.biased(q_BHTD)
        terms["scores"] = scores
    inputs = _Inputs(q_BHTD, k_BHSD, v_BHSD, terms, mask, causal, buffers, scale, sink, dropout)
    attended(partial(_probabilities, inputs), kind)
    return _attended(inputs)


@dataclass(frozen=True)
class _Inputs:
    """The arguments of `attend`, with its terms by hook."""

    q_BHTD: Tensor
    k_BHSD: Tensor
    v_BHSD: Tensor
    terms: Mapping[str, Term | None]
    mask: Tensor | None
    causal: tuple[Positions, Positions] | None
    buffers: tuple[Tensor, Tensor] | None
    scale: float
    sink: Tensor | None
    dropout: float

    def of_queries(self, rows: slice) -> "_Inputs":
        return replace(
            self,
            q_BHTD=self.q_BHTD[:, :, rows],
            terms={hook: None if term is None else term.of_queries(rows) for hook, term in self.terms.items()},
            mask=self.mask if self.mask is None or self.mask.shape[2] == 1 else self.mask[:, :, rows],
            causal=None if self.causal is None else (self.causal[0].part(rows), self.causal[1]),
        )

    def of_group(self, group: int) -> "_Inputs":
        """The heads that share the ``group``-th keys and values; of attention without position terms."""
        size = self.q_BHTD.shape[1] // self.k_BHSD.shape[1]
        heads, keys = slice(group * size, (group + 1) * size), slice(group, group + 1)
        return replace(
            self,
            q_BHTD=self.q_BHTD[:, heads],
            k_BHSD=self.k_BHSD[:, keys],
            v_BHSD=self.v_BHSD[:, keys],
            mask=self.mask if self.mask is None or self.mask.shape[1] == 1 else self.mask[:, heads],
            sink=None if self.sink is None else self.sink[heads],
        )


def _node(x: _Inputs) -> Tensor:
    """One node; without position terms it reads the buffers themselves.

    With a further axis (Longformer's windows) the formula itself: a node has four axes.
    """
    if x.q_BHTD.ndim > 4:
        return _formula(x)
    q, k, v, mask = x.q_BHTD, x.k_BHSD, x.v_BHSD, x.mask
    terms = {hook: term for hook, term in x.terms.items() if term is not None}
    static = x.buffers is not None and not terms
    if x.buffers is not None and static:
        k, v = x.buffers
    names = {hook: term.operator.name for hook, term in terms.items()}
    spec = AttentionSpec(
        scores=names.get("scores"),
        values=names.get("values"),
        base=names.get("base"),
        mask="none" if mask is None else "keys" if mask.shape[2] == 1 else "pairs",
        causal=x.causal is not None,
        grouped=k.shape[1] != q.shape[1],
        sink=x.sink is not None,
        cache="static" if static else "none",
        head_size=q.shape[-1],
    )
    tensors = [tensor for hook in spec.operators for tensor in terms[hook].tensors]
    inputs = [q, k, v, *(tensor for tensor in (mask, x.sink) if tensor is not None), *tensors]
    if spec.ordered:
        queries, keys = x.causal or next((term.queries, term.keys) for term in terms.values())
        inputs += [queries.slots_T, keys.slots_T]
    sizes = {"heads": q.shape[1], "kv_heads": k.shape[1]}
    shape = (*q.shape[:-1], v.shape[-1])
    return emit(spec, inputs, like=q, shape=shape, scale=x.scale, lowest=dropped_score(q.dtype), **sizes)


@traced_as(_node)
def _attended(x: _Inputs) -> Tensor:
    """In PyTorch: tiled over heads and queries where the scores of all would be too many.

    The products of one head's many queries take a third of the time of those of all heads' few.
    """
    if _tile(x.q_BHTD, x.k_BHSD) is None:
        return _formula(x)
    # written where it stays: small results between large scores would keep malloc from using their memory again
    y_BHTD = x.v_BHSD.new_empty((*x.q_BHTD.shape[:-1], x.v_BHSD.shape[-1]))
    groups = x.k_BHSD.shape[1]
    if any(x.terms.values()):  # which are of all heads
        parts = [(x, y_BHTD)]
    else:
        parts = [(x.of_group(group), y) for group, y in enumerate(y_BHTD.chunk(groups, 1))]
    for part, y in parts:
        tile = _tile(part.q_BHTD, part.k_BHSD) or y.shape[2]
        for start in range(0, y.shape[2], tile):
            y[:, :, start : start + tile] = _formula(part.of_queries(slice(start, start + tile)))
    return y_BHTD


def _formula(x: _Inputs) -> Tensor:
    """Computes `attend` without tiles, and without the buffers: copying the used slots costs nothing that matters."""
    p_BHTS = _probabilities(x)
    if x.dropout:
        p_BHTS = F.dropout(p_BHTS, x.dropout)
    context_BHTD = by_group(p_BHTS, x.v_BHSD)
    values = x.terms["values"]
    return context_BHTD if values is None else context_BHTD + values.dense(probs=p_BHTS)


def _probabilities(x: _Inputs, heads: slice = slice(None)) -> Tensor:
    """Of some heads, [B, H, T, S]; a position term is computed for all of them."""
    q_BHTD, k_BHSD = x.q_BHTD, x.k_BHSD
    one_by_one = heads != slice(None) and not any(x.terms.values())
    if one_by_one:
        q_BHTD, k_BHSD = q_BHTD[:, heads], shared(k_BHSD, q_BHTD.shape[1])[:, heads]
    s_BHTS = _scores(q_BHTD, k_BHSD, x.scale, x.terms["scores"], x.terms["base"])
    if not one_by_one:
        s_BHTS = s_BHTS[:, heads]
    mask = _with_order(x.mask, x.causal, q_BHTD)
    if mask is not None:
        # all heads first: of Longformer's windows the axis is the number of blocks, which a comparison would trace as 1
        s_BHTS = s_BHTS + (mask if heads == slice(None) or mask.shape[1] == 1 else mask[:, heads])
    return _softmax(s_BHTS, None if x.sink is None else x.sink[heads])


def _tile(q_BHTD: Tensor, k_BHSD: Tensor) -> int | None:
    """Queries per tile, so that memory grows with the length, not with its square; None: no tiling.

    Not in training or a trace (lengths are symbols there), nor with a further axis (Longformer's windows).
    """
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled() or q_BHTD.ndim > 4:
        return None
    tile = max(1, _MOST_SCORES // (q_BHTD.shape[0] * q_BHTD.shape[1] * k_BHSD.shape[2]))
    return tile if tile < q_BHTD.shape[2] else None


def _scores(q_BHTD: Tensor, k_BHSD: Tensor, scale: float, scores: Term | None, base: Term | None) -> Tensor:
    """``scale * (q k^T + scores)``, [B, H, T, S]."""
    tensors = {"q": q_BHTD, "k": k_BHSD}
    if scores is None and base is None:
        return by_group(q_BHTD * scale, k_BHSD.mT)
    s_BHTS = by_group(q_BHTD, k_BHSD.mT) if base is None else base.dense(**tensors)
    if scores is None:
        return s_BHTS * scale
    term = scores.dense(**tensors)
    return (s_BHTS + term) * scale if scores.operator.scaled else s_BHTS * scale + term


def _with_order(mask: Tensor | None, causal: tuple[Positions, Positions] | None, like: Tensor) -> Tensor | None:
    """One mask of padding and causality, which is the same in every layer."""
    if causal is None:
        return mask
    queries, keys = causal
    later_TS = keys.slots_T > queries.slots_T[:, None]
    earlier = torch.zeros((), dtype=like.dtype, device=like.device) if mask is None else mask
    return torch.where(later_TS, dropped_score(like.dtype), earlier).to(like.dtype)


def _softmax(s_BHTS: Tensor, sink: Tensor | None) -> Tensor:
    """Probabilities; a sink takes part as a key without a value."""
    if sink is None:
        return s_BHTS.softmax(-1)
    sink_BHT1 = sink[:, None, None].expand(*s_BHTS.shape[:-1], 1)
    return torch.cat((s_BHTS, sink_BHT1.to(s_BHTS.dtype)), -1).softmax(-1)[..., :-1]


def shared(x_BGSD: Tensor, heads: int) -> Tensor:
    """Every group's keys or values for each of its heads, [B, H, S, D]."""
    groups = x_BGSD.shape[1]
    return x_BGSD if groups == heads else x_BGSD.repeat_interleave(heads // groups, dim=1)


def by_group(x_BHTN: Tensor, y_BGNM: Tensor) -> Tensor:
    """The products ``x y``, [B, H, T, M]; the heads of a group are concatenated along T, one product for each group."""
    if x_BHTN.shape[1] == y_BGNM.shape[1]:
        return x_BHTN @ y_BGNM
    (batch, heads, length, _), groups = x_BHTN.shape, y_BGNM.shape[1]
    return (x_BHTN.reshape(batch, groups, heads // groups * length, -1) @ y_BGNM).reshape(batch, heads, length, -1)


def dropped_score(dtype: torch.dtype) -> float:
    """What drops a score: half of the least number, so that two masks add up to a finite one."""
    return torch.finfo(dtype).min / 2


def additive(mask_BS: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask of 1 (keep) and 0 (padding) as a number to add to scores, [B, 1, 1, S]."""
    if mask_BS is None:
        return None
    zero = torch.zeros((), dtype=like.dtype, device=like.device)
    return torch.where(mask_BS[:, None, None, :] != 0, zero, dropped_score(like.dtype))


def sees_any(mask_B11S: Tensor, causal: tuple[Positions, Positions] | None = None) -> Tensor:
    """Which queries some key is kept for, bool [B, 1, 1], causal [B, T, 1].

    Kept are the keys where the mask is 0; ``causal`` as of `attend`: the first kept key must not be after the query.
    """
    kept_BS = mask_B11S.squeeze(2).squeeze(1) == 0
    if causal is None:
        return kept_BS.any(-1)[:, None, None]
    queries, keys = causal
    first_B1 = torch.where(kept_BS, keys.slots_T, torch.iinfo(torch.int64).max).amin(-1, keepdim=True)
    return (first_B1 <= queries.slots_T)[..., None]
