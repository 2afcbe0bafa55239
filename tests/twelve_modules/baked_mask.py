"""A decoder that bakes its causal mask: for one length, which is refused; `Sliced` has a buffer of the longest."""

import torch
import torch.nn.functional as F
from torch import nn


class Baked(nn.Module):
    def __init__(self, vocab=61, dim=60, heads=5, seq_len=17, longest=150):
        super().__init__()
        self.heads, self.seq_len = heads, seq_len
        self.embed, self.pos = nn.Embedding(vocab, dim), nn.Parameter(torch.randn(longest, dim))
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("mask", torch.tril(torch.ones(longest, longest)).bool())

    def causal(self, scores):
        mask = torch.tril(torch.ones(self.seq_len, self.seq_len)).bool()
        return scores.masked_fill(~mask, float("-inf"))

    def forward(self, input_ids):
        b, t = input_ids.shape
        x = self.embed(input_ids) + self.pos[:t]
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        scores = self.causal(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5)
        y = F.softmax(scores, dim=-1) @ v
        return x + self.out(y.transpose(1, 2).reshape(b, t, -1))


class Sliced(Baked):
    def causal(self, scores):
        t = scores.shape[-1]
        return scores.masked_fill(~self.mask[:t, :t], float("-inf"))


def make():
    return Baked(), {"input_ids": torch.randint(61, (2, 17))}


def sliced():
    return Sliced(), {"input_ids": torch.randint(61, (2, 17))}
