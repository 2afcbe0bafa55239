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


def test_the_encoder_and_the_attention_of_led(library: Any) -> None:
    config = library.LEDConfig(
        vocab_size=20,
        d_model=12,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        attention_window=4,
        max_encoder_position_embeddings=16,
        pad_token_id=1,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = library.LEDModel(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    ids, mask = torch.randint(2, 20, (2, 11)), torch.ones(2, 11, dtype=torch.int64)
    mask[0, 8:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :5], "use_cache": False}
    with torch.no_grad():
        before = model(**inputs)
        renew(model)
        assert type(model.encoder).__name__ == "LedEncoder"
        after = model(**inputs)
    real = mask == 1
    for name, compared in (("encoder_last_hidden_state", real), ("last_hidden_state", real[:, :5])):
        agree(after[name][compared], before[name][compared], "model in float32", torch.float32)


def test_attention_of_mvp(library: Any) -> None:
    from transformers.models.mvp.modeling_mvp import MvpAttention

    config = library.MvpConfig(d_model=12, decoder_attention_heads=3)
    config._attn_implementation = "eager"
    layer = Layer(config, MvpAttention(12, 3, is_decoder=True, layer_idx=1)).eval()
    x, far, mask = states()
    before = [layer.self_attn(x, attention_mask=mask)[0], layer.self_attn(x, key_value_states=far)[0]]
    renew(layer)
    assert type(layer.self_attn).__name__ == "BartAttention"
    after = [layer.self_attn(x, attention_mask=mask, attn_prompt=None)[0], layer.self_attn(x, key_value_states=far)[0]]
    for mine, theirs in zip(after, before, strict=True):
        agree(mine.detach(), theirs.detach(), "model in float32", torch.float32)


def test_prompts_of_mvp_are_kept(library: Any) -> None:
    """Learned keys before those of the tokens, which BART's attention lacks."""
    from transformers.models.mvp.modeling_mvp import MvpAttention

    config = library.MvpConfig(d_model=12, decoder_attention_heads=3, use_prompt=True)
    layer = Layer(config, MvpAttention(12, 3))
    renew(layer)
    assert isinstance(layer.self_attn, MvpAttention)
