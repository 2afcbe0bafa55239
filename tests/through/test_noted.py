"""What one forward pass shows of a decoder's attentions: windows by sliced masks, keys and biases that layers share."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from posexport.nn.cached_call import NotCachedError, cached_call
from posexport.nn.caching import Caching, Reach
from posexport.through.attention import attention, mask, noting
from posexport.through.planned_call import Layer, PlannedCall
from tests.tolerances import agree


def window_of(size: int, tokens: int = 5) -> torch.Tensor:
    pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    from transformers.masking_utils import sliding_window_causal_mask_function

    made = mask(
        mask_function=sliding_window_causal_mask_function(size),
        batch_size=1,
        q_length=tokens,
        kv_length=tokens,
        q_offset=0,
        kv_offset=0,
    )
    assert made is not None
    return made


def test_keys_of_an_earlier_layer_are_shared() -> None:
    first, second, query = (torch.randn(1, 2, 5, 4) for _ in range(3))
    with torch.no_grad(), noting() as layers:
        for key in (first, second, first.clone(), second):
            attention(nn.Identity(), query, key, key, None, is_causal=True)
    assert [layer.shares for layer in layers] == [None, None, None, 1]


def test_a_slice_of_all_rows_is_the_same_mask() -> None:
    key = torch.randn(1, 2, 5, 4)
    with torch.no_grad(), noting() as layers:
        made = window_of(3)
        attention(nn.Identity(), key, key, key, made[:, :, slice(0, None)])
        with pytest.raises(NotCachedError, match="a mask of its own making"):
            attention(nn.Identity(), key, key, key, made.clone())
    assert [layer.window for layer in layers] == [3]


def test_the_bias_of_t5_is_computed_for_past_and_new_tokens() -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    from transformers.models.t5.modeling_t5 import T5Attention

    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=15, d_kv=3, num_heads=5, is_decoder=True, relative_attention_num_buckets=7,
        relative_attention_max_distance=9,
    )  # fmt: skip
    layer, plain = T5Attention(config, has_relative_attention_bias=True, layer_idx=0), T5Attention(config, layer_idx=1)
    nn.init.normal_(layer.relative_attention_bias.weight, std=2)
    q, k, v = (torch.randn(1, 5, 11, 3) for _ in range(3))
    bias = layer.compute_bias(11, 11)
    with torch.no_grad():
        expected, _ = attention(layer, q, k, v, None, is_causal=True, scaling=1.0, position_bias=bias)
        with noting() as layers:
            attention(layer, q, k, v, None, is_causal=True, position_bias=bias)
            attention(plain, q, k, v, None, is_causal=True, position_bias=bias)
            with pytest.raises(NotCachedError, match="it adds a bias to its scores"):
                attention(plain, q, k, v, None, is_causal=True, position_bias=bias.clone())
            with pytest.raises(NotCachedError, match="a bias and a sliding window"):
                attention(layer, q, k, v, window_of(3, 11), position_bias=bias)
        assert [each.biased for each in layers] == [True, True]
        # the last three tokens behind the first eight
        mask = torch.ones(1, 11, dtype=torch.int64)
        at = Reach.by_mask(mask, 3, Caching())
        call = PlannedCall(at, mask, [(k[:, :, :8], v[:, :, :8])] * 2, plan=layers)
        new_q, new_k, new_v = (x[:, :, 8:] for x in (q, k, v))
        with cached_call(call):
            for module in (layer, plain):
                context, _ = attention(
                    module, new_q, new_k, new_v, None, scaling=1.0, position_bias=torch.zeros(1, 5, 3, 3)
                )
                agree(context, expected[:, 8:], "model in float32", torch.float32)


@pytest.mark.parametrize("cached", [False, True])
def test_scores_are_capped_after_the_scale(cached: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (4 * torch.randn(1, heads, 5, 3) for heads in (4, 2, 2))
    scores = torch.tanh(q @ k.repeat_interleave(2, 1).mT * 0.3 / 2) * 2
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = scores.masked_fill(later, -torch.inf).softmax(-1) @ v.repeat_interleave(2, 1)
    mask_BS = torch.ones(1, 5, dtype=torch.int64)
    call = PlannedCall(Reach.by_mask(mask_BS, 5, Caching()), mask_BS, None, plan=[Layer(2, 3, None)])
    with torch.no_grad(), cached_call(call) if cached else nullcontext():
        context, _ = attention(nn.Identity(), q, k, v, None, is_causal=True, scaling=0.3, softcap=2.0)
    agree(context, expected.transpose(1, 2), "model in float32", torch.float32)
