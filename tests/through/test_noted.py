"""What one forward pass shows of a decoder's attentions: windows by sliced masks, and keys that layers share."""

import pytest
import torch
from torch import nn

from posexport.nn.cached_call import NotCachedError
from posexport.through.attention import attention, mask, noting


def window_of(size: int) -> torch.Tensor:
    pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    from transformers.masking_utils import sliding_window_causal_mask_function

    made = mask(
        mask_function=sliding_window_causal_mask_function(size),
        batch_size=1,
        q_length=5,
        kv_length=5,
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
