"""Attention modules of transformers that compute by code of their own what BART's computes by transformers' interface.

They have the same projections, and are replaced by BART's with them, so that posexport's attention and its KV cache are
called. `posexport.through.agreement` compares the model's outputs with those before.
"""

from typing import Any

from torch import nn

#: class names
_LIKE_BART = ("TrOCRAttention",)
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def renew(model: nn.Module) -> None:
    """Replace such modules of ``model`` in place."""
    for parent in [*model.modules()]:
        for name, child in [*parent.named_children()]:
            if type(child).__name__ in _LIKE_BART:
                setattr(parent, name, _as_bart(child, _config(model, child), causal="self" in name))


def _as_bart(module: Any, config: Any, *, causal: bool) -> nn.Module:
    """BART's attention with the projections of ``module``."""
    from transformers.models.bart.modeling_bart import BartAttention

    attention: nn.Module = BartAttention(
        module.embed_dim, module.num_heads, is_decoder=True, is_causal=causal, config=config, layer_idx=module.layer_idx
    )
    for name in _PROJECTIONS:
        setattr(attention, name, getattr(module, name))
    return attention.eval()


def _config(model: nn.Module, child: nn.Module) -> Any:
    """The configuration of the innermost model around ``child``."""
    around = [part for part in model.modules() if getattr(part, "config", None) is not None]
    return next(part.config for part in reversed(around) if any(each is child for each in part.modules()))
