"""Attention outside of transformers' interface, and the module that replaces it: the same numbers."""

from typing import Any

import pytest
import torch
from torch import nn

from posexport.through.renewed import BertAttention, renew
from tests.tolerances import agree


@pytest.fixture
def library() -> Any:
    return pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")


class Layer(nn.Module):
    def __init__(self, config: Any, attention: nn.Module) -> None:
        super().__init__()
        self.config, self.self_attn = config, attention


def states() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States, states of an encoder, and a causal mask."""
    torch.manual_seed(0)
    mask = torch.full((7, 7), -1e30).triu(1)[None, None].expand(2, 1, 7, 7)
    return torch.randn(2, 7, 12), torch.randn(2, 5, 12), mask


def test_attention_of_trocr(library: Any) -> None:
    from transformers.models.trocr.modeling_trocr import TrOCRAttention

    config = library.TrOCRConfig(d_model=12, decoder_attention_heads=3)
    config._attn_implementation = "eager"
    layer = Layer(config, TrOCRAttention(config, 12, 3, is_decoder=True, layer_idx=1)).eval()
    x, far, mask = states()
    before = [layer.self_attn(x, attention_mask=mask)[0], layer.self_attn(x, key_value_states=far)[0]]
    renew(layer)
    assert type(layer.self_attn).__name__ == "BartAttention"
    after = [layer.self_attn(x, attention_mask=mask)[0], layer.self_attn(x, key_value_states=far)[0]]
    for mine, theirs in zip(after, before, strict=True):
        agree(mine.detach(), theirs.detach(), "model in float32", torch.float32)


def test_attention_of_blip(library: Any) -> None:
    from transformers.models.blip.modeling_blip_text import BlipTextSelfAttention

    config = library.BlipTextConfig(hidden_size=12, num_attention_heads=3, encoder_hidden_size=12)
    config._attn_implementation = "eager"
    x, far, mask = states()
    for crosses in (False, True):
        layer = Layer(config, BlipTextSelfAttention(config, crosses)).eval()
        given = {"encoder_hidden_states": far} if crosses else {"attention_mask": mask}
        before = layer.self_attn(x, **given)[0]
        renew(layer)
        assert isinstance(layer.self_attn, BertAttention)
        agree(layer.self_attn(x, **given)[0].detach(), before.detach(), "model in float32", torch.float32)
