"""Rotary frequencies of the length (dynamic NTK): by a Python `if`, which is refused; `ChosenByWhere`, which is not."""

import torch
import torch.nn.functional as F
from torch import nn


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class DynamicNTKRotary(nn.Module):
    def __init__(self, dim, trained=32, base=10000.0, factor=2.0):
        super().__init__()
        self.dim, self.trained, self.base, self.factor = dim, trained, base, factor
        self.register_buffer("exponent", torch.arange(0, dim, 2).float() / dim, persistent=False)

    def longer(self, seq_len):
        ratio = self.factor * seq_len / self.trained - (self.factor - 1)
        return self.base * ratio ** (self.dim / (self.dim - 2))

    def inv_freq(self, position):
        seq_len = position.shape[0]
        base = self.base
        if seq_len > self.trained:
            base = self.longer(seq_len)
        return 1.0 / base**self.exponent

    def forward(self, position):
        freqs = position[:, None].to(self.exponent.dtype) * self.inv_freq(position)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()


class ChosenByWhere(DynamicNTKRotary):
    def inv_freq(self, position):
        seq_len = (position[-1] + 1).to(self.exponent.dtype)
        base = torch.where(seq_len > self.trained, self.longer(seq_len.clamp(min=self.trained)), self.base)
        return 1.0 / base**self.exponent


class Decoder(nn.Module):
    def __init__(self, rotary, vocab=61, dim=60, heads=5):
        super().__init__()
        self.heads, self.rotary = heads, rotary(dim // heads)
        self.embed, self.norm = nn.Embedding(vocab, dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, input_ids):
        b, t = input_ids.shape
        x = self.embed(input_ids)
        cos, sin = self.rotary(torch.arange(t, device=x.device))
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, dim=-1))
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, t, -1))


def make():
    return Decoder(DynamicNTKRotary), {"input_ids": torch.randint(61, (2, 19))}


def chosen():
    return Decoder(ChosenByWhere), {"input_ids": torch.randint(61, (2, 19))}
