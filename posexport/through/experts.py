"""Mixture of experts as products with all experts together, so that the graph does not depend on the routing.

transformers' implementations depend on the routing (a loop over the chosen experts, tokens sorted by expert), or copy
the weights of the chosen experts for every token. Here every expert processes every token, with weight 0 where it was
not chosen: more arithmetic than a grouped kernel, for any sequence length.

The matrices of all experts are one linear projection, [E M, C]. Its outputs are scaled by the routing, and the next
projection, [C, E M], sums the experts. Both are quantized as any other.

Shape letters: N tokens, J chosen experts of a token, E experts, C channels of the model, M channels of an expert.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.sources.lazy_parameters import values

#: of a layer that `stack` changed: the number of its experts
_COUNT = "posexport_experts"


def stack(model: nn.Module) -> None:
    """Make matrices of the parameters [E, M, C] and [E, C, M], under the same names.

    The layers are instances of classes that transformers' ``use_experts_implementation`` decorates; only
    `dense_experts` computes them afterwards.
    """
    layers: list[Any] = [layer for layer in model.modules() if hasattr(layer, "has_post_expert_norm")]
    for layer in (layer for layer in layers if not hasattr(layer, _COUNT)):
        setattr(layer, _COUNT, layer.down_proj.shape[0])
        _replace(layer, _first(layer), lambda weight_EMC: weight_EMC.flatten(0, 1))
        if not layer.has_post_expert_norm:
            _replace(layer, "down_proj", lambda weight_ECM: weight_ECM.transpose(0, 1).flatten(1))


def dense_experts(layer: Any, hidden_NC: Tensor, chosen_NJ: Tensor, weights_NJ: Tensor) -> Tensor:
    """The experts' weighted sum, [N, C]; ``layer``: as `stack` left it."""
    # all experts' channels
    first, count = _first(layer), getattr(layer, _COUNT)
    inner = F.linear(hidden_NC, getattr(layer, first)).reshape(hidden_NC.shape[0], count, -1)
    inner = inner + getattr(layer, f"{first}_bias") if layer.has_bias else inner
    inner_NEM = layer._apply_gate(inner) if layer.has_gate else layer.act_fn(inner)  # noqa: SLF001
    # the weight of every expert, 0 where it was not chosen
    experts_E = torch.arange(count, device=chosen_NJ.device)
    routed_NE = torch.where(chosen_NJ[..., None] == experts_E, weights_NJ[..., None], 0).sum(1).to(inner_NEM.dtype)
    if layer.has_post_expert_norm:
        return _sum_of_normed(layer, inner_NEM, routed_NE)
    # the sum over experts, inside the product
    out_NC = F.linear((inner_NEM * routed_NE[..., None]).flatten(1), layer.down_proj)
    return out_NC + routed_NE @ layer.down_proj_bias if layer.has_bias else out_NC


def _first(layer: Any) -> str:
    return "gate_up_proj" if layer.has_gate else "up_proj"


def _replace(layer: Any, name: str, matrix: Any) -> None:
    """Replace a parameter by the matrix of its weight in the order [expert, output, input]."""
    weight = values(getattr(layer, name))
    stacked = matrix(weight.mT if layer.is_transposed else weight).contiguous()
    setattr(layer, name, nn.Parameter(stacked, requires_grad=False))


def _sum_of_normed(layer: Any, inner_NEM: Tensor, routed_NE: Tensor) -> Tensor:
    """The weighted sum of every expert's normalised output: a product for each expert."""
    weight_EMC = layer.down_proj if layer.is_transposed else layer.down_proj.mT
    out_ENC = inner_NEM.transpose(0, 1) @ weight_EMC
    out_ENC = out_ENC + layer.down_proj_bias[:, None] if layer.has_bias else out_ENC
    out_NC: Tensor = (layer.post_expert_norm(out_ENC) * routed_NE.T[..., None]).sum(0)
    return out_NC
