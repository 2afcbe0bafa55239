"""Scaled dot-product attention with position terms.

Shape letters: B batch, H heads, T queries, S keys, D head size.
"""

import torch
from torch import Tensor

from posexport.encodings.base import Term
from posexport.ops.attention import AttentionKind, Mask
from posexport.ops.base import emit


def attend(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    scores: Term | None = None,
    values: Term | None = None,
) -> Tensor:
    """``softmax(scale * (q k^T + scores) + mask) v + values``; [B, H, T, D].

    Scores of an operator that is not ``scaled`` are added after the scale.

    ``mask`` is added: 0 keeps, the dtype's lowest number drops; [B, 1, 1, S] or [B, 1, T, S]. While
    ``torch.onnx.export`` traces, attention with a term becomes one node of domain ``posexport``, whose body a lowering
    chooses; without a term it stays plain operators, which every runtime fuses.
    """
    if torch.onnx.is_in_onnx_export() and (scores or values):
        return _node(q_BHTD, k_BHSD, v_BHSD, scale, mask, scores, values)
    s_BHTS = q_BHTD @ k_BHSD.mT
    if scores is None:
        s_BHTS = s_BHTS * scale
    else:
        given = {"q": q_BHTD, "k": k_BHSD}
        term = scores.dense(*(given[name] for name in scores.operator.takes))
        s_BHTS = (s_BHTS + term) * scale if scores.operator.scaled else s_BHTS * scale + term
    if mask is not None:
        s_BHTS = s_BHTS + mask
    p_BHTS = s_BHTS.softmax(-1)
    context_BHTD = p_BHTS @ v_BHSD
    return context_BHTD if values is None else context_BHTD + values.dense(p_BHTS)


def _node(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, scores: Term | None, values: Term | None
) -> Tensor:
    terms = [term for term in (scores, values) if term is not None]
    kind: Mask = "none" if mask is None else "keys" if mask.shape[2] == 1 else "pairs"
    of_scores, of_values = (None if term is None else term.operator for term in (scores, values))
    name = AttentionKind(of_scores, of_values, kind).name
    tensors = [tensor for term in terms for tensor in term.tensors]
    positions = (terms[0].queries.slots_T, terms[0].keys.slots_T)
    inputs = (q, k, v, *([] if mask is None else [mask]), *tensors, *positions)
    return emit(name, inputs, like=q, shape=(*q.shape[:-1], v.shape[-1]), scale=scale)
