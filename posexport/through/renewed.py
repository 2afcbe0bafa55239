"""Replaces transformers modules that cannot be exported, or cannot have a KV cache, by equivalent modules.

Attention that does not call transformers' interface is replaced by attention that does, with the same projections:
so posexport's attention and KV cache are used. `posexport.through.agreement` compares the outputs before and after.
"""

from functools import partial
from statistics import NormalDist
from typing import Any

from torch import Tensor, nn

from posexport.through.led import LedEncoder, WithoutCache

#: attention with the same projections as BART's; MVP's only without learned prompts, which are additional keys
_LIKE_BART = ("TrOCRAttention", "LEDDecoderAttention", "MvpAttention")


def renew(model: nn.Module) -> None:
    """Replace these modules of ``model`` in place."""
    for parent in [*model.modules()]:
        children: list[tuple[str, Any]] = [*parent.named_children()]
        for name, child in children:
            kind = type(child).__name__
            if kind in _LIKE_BART and not getattr(_config(model, child), "use_prompt", False):
                causal = "self" in name and "Encoder" not in type(parent).__name__
                renewed = _as_bart(child, _config(model, child), causal=causal)
                setattr(parent, name, WithoutCache(renewed) if kind == "LEDDecoderAttention" else renewed)
            elif kind == "LEDEncoder":
                setattr(parent, name, LedEncoder(child))
            elif kind == "BlipTextSelfAttention":
                setattr(parent, name, BertAttention(child))
            elif getattr(child, "activation_sparsity", 0) > 0:  # Gemma 3n's feed-forward layers
                quantile = NormalDist().inv_cdf(child.activation_sparsity)
                child._gaussian_topk = partial(_above_quantile, quantile)  # noqa: SLF001 (its forward calls it)


def _above_quantile(deviations: float, x: Tensor) -> Tensor:
    """``relu(x - mean - deviations * std)`` over channels.

    transformers computes the number of standard deviations with erfinv, which ONNX lacks.
    """
    return (x - x.mean(-1, keepdim=True) - deviations * x.std(-1, keepdim=True, unbiased=False)).relu()


def _as_bart(module: Any, config: Any, *, causal: bool) -> nn.Module:
    """An instance of BART's attention with the projections of ``module``."""
    from transformers.models.bart.modeling_bart import BartAttention

    attention: nn.Module = BartAttention(
        module.embed_dim, module.num_heads, is_decoder=True, is_causal=causal, config=config, layer_idx=module.layer_idx
    )
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        setattr(attention, name, getattr(module, name))
    return attention.eval()


class BertAttention(nn.Module):
    """BLIP's attention of texts to themselves or to an image, without transformers' cache; causality is in the mask."""

    is_causal = False

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.query, self.key, self.value, self.config = module.query, module.key, module.value, module.config
        self._size = module.attention_head_size

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, Any]:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
        from transformers.models.bert.modeling_bert import eager_attention_forward

        crosses = encoder_hidden_states is not None
        states = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        layers = ((self.query, hidden_states), (self.key, states), (self.value, states))
        q, k, v = (layer(x).view(*x.shape[:-1], -1, self._size).transpose(1, 2) for layer, x in layers)
        function = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)  # noqa: SLF001
        mask = encoder_attention_mask if crosses else attention_mask
        context, scores = function(self, q, k, v, mask, dropout=0.0, scaling=self._size**-0.5)
        return context.reshape(*hidden_states.shape[:-1], -1).contiguous(), scores


def _config(model: nn.Module, child: nn.Module) -> Any:
    """The configuration of the innermost model around ``child``."""
    around = [part for part in model.modules() if getattr(part, "config", None) is not None]
    return next(part.config for part in reversed(around) if any(each is child for each in part.modules()))
