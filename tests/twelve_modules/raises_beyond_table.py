"""An encoder that raises where an input is longer than its table of positions."""

import torch
import torch.nn.functional as F
from torch import nn


class LearnedPositions(nn.Module):
    def __init__(self, max_len, dim):
        super().__init__()
        self.max_len, self.table = max_len, nn.Embedding(max_len, dim)

    def forward(self, x):
        n = x.size(1)
        if n > self.max_len:
            raise ValueError(f"sequence of {n} tokens is longer than the {self.max_len} positions of the table")
        return x + self.table(torch.arange(n, device=x.device))


class Encoder(nn.Module):
    def __init__(self, vocab=61, dim=60, heads=5, max_len=77):
        super().__init__()
        self.heads = heads
        self.embed, self.positions = nn.Embedding(vocab, dim), LearnedPositions(max_len, dim)
        self.norm, self.qkv, self.out = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        nn.init.normal_(self.qkv.weight, std=0.3)

    def forward(self, input_ids, attention_mask):
        x = self.positions(self.embed(input_ids))
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask[:, None, None, :].bool())
        return x + self.out(y.transpose(1, 2).flatten(2))


def make():
    ids = torch.randint(61, (2, 11))
    return Encoder(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
