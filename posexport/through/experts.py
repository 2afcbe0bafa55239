"""Mixture of experts as one batched MatMul over all experts, so that the graph does not depend on the routing.

transformers' implementations depend on the routing (a loop over the chosen experts, tokens sorted by expert), or copy
the weights of the chosen experts for every token. Here every expert processes every token, with weight 0 where it was
not chosen: more arithmetic than a grouped kernel, for any sequence length.

Shape letters: N tokens, K chosen experts of a token, E experts, C channels.
"""

from typing import Any

import torch
from torch import Tensor


def dense_experts(layer: Any, hidden_NC: Tensor, chosen_NK: Tensor, weights_NK: Tensor) -> Tensor:
    """The experts' weighted sum, [N, C].

    ``layer``: an instance of a class that transformers' ``use_experts_implementation`` decorates.
    """
    first = "gate_up_proj" if layer.has_gate else "up_proj"
    hidden_ENM = _product(layer, first, hidden_NC[None])
    hidden_ENM = layer._apply_gate(hidden_ENM) if layer.has_gate else layer.act_fn(hidden_ENM)  # noqa: SLF001
    out_ENC = _product(layer, "down_proj", hidden_ENM)
    if layer.has_post_expert_norm:
        out_ENC = layer.post_expert_norm(out_ENC)
    experts_E = torch.arange(out_ENC.shape[0], device=chosen_NK.device)
    weights_NKE = torch.where(chosen_NK[..., None] == experts_E, weights_NK[..., None], 0)
    out_NC: Tensor = (out_ENC * weights_NKE.sum(1).T[..., None].to(out_ENC.dtype)).sum(0)
    return out_NC


def _product(layer: Any, name: str, x: Tensor) -> Tensor:
    weights = getattr(layer, name)
    out: Tensor = x @ (weights if layer.is_transposed else weights.mT)
    return out + getattr(layer, f"{name}_bias")[:, None] if layer.has_bias else out
