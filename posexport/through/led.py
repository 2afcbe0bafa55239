"""LED's encoder without its padding to whole windows and its branch by values, which a graph cannot have.

Beltagy, Peters, Cohan, "Longformer" (arXiv:2004.05150), section 7. Attention within a sliding window, as a mask over
all tokens: memory grows with the square of the length. Not done: global attention, which the configuration does not
ask for and transformers' pipelines do not pass.

Shape letters: B batch, T tokens, C model size.
"""

from typing import Any

import torch
from torch import Tensor, nn


class LedEncoder(nn.Module):
    """The encoder with the layers and weights of ``encoder``."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.config, self.main_input_name = encoder.config, encoder.main_input_name
        self.embed_tokens, self.embed_positions = encoder.embed_tokens, encoder.embed_positions
        self.layernorm_embedding, self.layers = encoder.layernorm_embedding, encoder.layers
        for layer in self.layers:
            layer.self_attn = WindowedAttention(layer.self_attn)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
        from transformers.models.led.modeling_led import LEDEncoderBaseModelOutput

        real_BT = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        embedded_BTC = self.embed_tokens(input_ids) + self.embed_positions(input_ids.shape)
        states_BTC = self.layernorm_embedding(embedded_BTC)
        for layer in self.layers:
            states_BTC = layer(states_BTC, attention_mask=real_BT)[0]
        return LEDEncoderBaseModelOutput(last_hidden_state=states_BTC)


class WithoutCache(nn.Module):
    """Attention of LED's decoder; its layers expect a cache as a third result."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, **arguments: Any) -> tuple[Tensor, Any, None]:
        context, weights = self.attention(**arguments)
        return context, weights, None


class WindowedAttention(nn.Module):
    """LED's self-attention by transformers' interface: each token attends to half a window on both sides."""

    is_causal = False

    def __init__(self, module: Any) -> None:
        super().__init__()
        inner = module.longformer_self_attn
        self.query, self.key, self.value, self.output = inner.query, inner.key, inner.value, module.output
        self.config, self._size, self._reach = inner.config, inner.head_dim, inner.one_sided_attn_window_size

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, **_: Any) -> tuple[Tensor]:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
        from transformers.models.bart.modeling_bart import eager_attention_forward

        q, k, v = (
            layer(hidden_states).unflatten(-1, (-1, self._size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        slots_T = torch.arange(hidden_states.shape[1], device=hidden_states.device)
        near_TT = (slots_T[:, None] - slots_T).abs() <= self._reach
        mask_B1TT = near_TT & (attention_mask != 0)[:, None, None]
        name = self.config._attn_implementation  # noqa: SLF001
        if name == "eager":  # adds its mask
            mask_B1TT = torch.zeros_like(mask_B1TT, dtype=q.dtype).masked_fill(~mask_B1TT, torch.finfo(q.dtype).min)
        function = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)
        context, _weights = function(self, q, k, v, mask_B1TT, dropout=0.0, scaling=self._size**-0.5)
        return (self.output(context.flatten(2)),)
