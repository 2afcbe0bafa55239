"""Modules that PyTorch did not follow once, and that convert today; what each has is in its first line."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

V, D, H = 17, 12, 3
IDS = torch.arange(32).reshape(2, 16) % V
MASKED = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(V, D)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.qkv = nn.Embedding(V, D), nn.Linear(D, 3 * D)

    def forward(self, input_ids, attention_mask=None):
        B, T = input_ids.shape
        q, k, v = self.qkv(self.token(input_ids)).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        return self.attend(q, k, v, attention_mask).transpose(1, 2).reshape(B, T, D)


class ThreeAxes(nn.Module):
    """SDPA without an axis of heads, `[B, T, D]`: once `only 4D query, key, and value are supported`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.q, self.k, self.v = nn.Embedding(V, D), nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, input_ids):
        x = self.token(input_ids)
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


def attention_of_three_axes():
    return ThreeAxes(), {"input_ids": IDS}


class CausalEncoder(nn.Module):
    """`nn.TransformerEncoder` with a causal mask and no is_causal=, `_detect_is_causal_mask`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(D, H, 20, batch_first=True)
        self.token, self.encoder = nn.Embedding(V, D), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, input_ids):
        x = self.token(input_ids)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.encoder(x, mask=later)


def causal_hint():
    return CausalEncoder(), {"input_ids": IDS}


class Rotated(Embedded):
    """The rotation of the first Llama, by `polar` and `view_as_complex`."""

    def forward(self, input_ids):
        x = self.token(input_ids)
        angles = torch.arange(x.shape[1])[:, None] / torch.arange(1, D // 2 + 1)
        turned = torch.view_as_complex(x.unflatten(-1, (D // 2, 2))) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(2)


def complex_rotation():
    return Rotated(), {"input_ids": IDS}


class OneToken(Attending):
    """An example of one row and one token: axes are tried at other sizes."""

    def attend(self, q, k, v, _attention_mask):
        return F.scaled_dot_product_attention(q, k, v)


def example_of_size_one():
    return OneToken(), {"input_ids": IDS[:1, :1]}


class PaddedEncoder(nn.Module):
    """`nn.TransformerEncoder` with padding: fast path and nested tensors are switched off."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(D, 2, 20, batch_first=True)
        self.token, self.encoder = nn.Embedding(V, D), nn.TransformerEncoder(layer, 1, enable_nested_tensor=True)

    def forward(self, input_ids, attention_mask):
        return self.encoder(self.token(input_ids), src_key_padding_mask=attention_mask == 0)


def fast_path():
    return PaddedEncoder(), MASKED


class Grouped(nn.Module):
    """SDPA with enable_gqa."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.q, self.kv = nn.Embedding(V, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, input_ids):
        B, T = input_ids.shape
        x = self.token(input_ids)
        q = self.q(x).view(B, T, 4, 3).transpose(1, 2)
        k, v = self.kv(x).view(B, T, 2, 2, 3).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).reshape(B, T, D)


def grouped_queries():
    return Grouped(), {"input_ids": IDS}


class Aligned(Embedded):
    """A branch by a remainder of the length, of which both ways agree: once `Ne(Mod(L, 8), 0)`."""

    def forward(self, input_ids):
        x = self.token(input_ids)
        if x.shape[1] % 8 != 0:
            x = F.pad(x, (0, 0, 0, 8 - x.shape[1] % 8))
        return x.tanh()[:, : input_ids.shape[1]]


def guard_of_alignment():
    return Aligned(), {"input_ids": IDS}


class ByKeyword(Embedded):
    """A forward of keywords alone, for which `dynamic_shapes` had to mirror them."""

    def forward(self, **inputs):
        return self.token(inputs["input_ids"]) * inputs["attention_mask"][..., None]


def inputs_by_keyword():
    return ByKeyword(), MASKED


class MaskByVmap(Attending):
    """The mask of transformers 4, made by vmap over every axis: once `unordered_map::at`."""

    def attend(self, q, k, v, attention_mask):
        def seen(row, _, query, key):
            return (key <= query) & attention_mask[row, key].bool()

        for axes in [(None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)]:
            seen = torch.vmap(seen, in_dims=axes)
        tokens = torch.arange(q.shape[2])
        mask = seen(torch.arange(q.shape[0]), torch.arange(1), tokens, tokens)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask | (tokens == 0))


def mask_by_vmap():
    return MaskByVmap(), MASKED


class PaddingMask(Attending):
    """SDPA with a padding mask as booleans, whose axes stay dynamic."""

    def attend(self, q, k, v, attention_mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask[:, None, None].bool())


def padding_mask_of_attention():
    return PaddingMask(), MASKED


class Recurrent(nn.Module):
    """LSTMs with `proj_size`, and packed rows: once the steps of the traced length."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(V, D)
        self.rnn = nn.LSTM(D, D, 2, proj_size=4, batch_first=True, bidirectional=True)

    def forward(self, input_ids, lengths):
        rows = pack_padded_sequence(self.token(input_ids), lengths, batch_first=True, enforce_sorted=False)
        states, (_, cells) = self.rnn(rows)
        return pad_packed_sequence(states, batch_first=True, total_length=input_ids.shape[1])[0], cells[-1]


def recurrent_layers():
    return Recurrent(), {"input_ids": IDS, "lengths": torch.tensor([16, 9])}


class SliceByValue(Embedded):
    """A slice up to the longest row, as `.item()`: once `u1 < 0`."""

    def forward(self, input_ids, attention_mask):
        x = self.token(input_ids)
        longest = attention_mask.sum(1).max().item()
        return torch.cat([x[:, :longest].tanh(), x[:, longest:].tanh()], 1)


def slice_by_value():
    return SliceByValue(), MASKED


class TwoTypes(Embedded):
    """A float64 constant beside float32: once `bound to different types`."""

    def forward(self, input_ids):
        x = self.token(input_ids)
        return (x * torch.linspace(0, 1, D, dtype=torch.float64)).to(x.dtype)


def two_float_types():
    return TwoTypes(), {"input_ids": IDS}
