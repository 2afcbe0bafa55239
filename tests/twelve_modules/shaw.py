"""Relative positions on keys and values by the formula of Shaw et al. (2018), with einsum."""

import math

import torch
from torch import nn


class RelativeMultiHeadAttention(nn.Module):
    """e_ij = x_i W_Q (x_j W_K + a_ij^K)^T / sqrt(d_z) and z_i = sum_j alpha_ij (x_j W_V + a_ij^V)."""

    def __init__(self, d_model, n_heads, clip=16):
        super().__init__()
        self.n_heads, self.d_z, self.clip = n_heads, d_model // n_heads, clip
        self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, d_model) for _ in range(3))
        self.w_o = nn.Linear(d_model, d_model)
        self.a_k = nn.Parameter(torch.randn(2 * clip + 1, self.d_z))
        self.a_v = nn.Parameter(torch.randn(2 * clip + 1, self.d_z))

    def forward(self, x, mask):
        b, n, _ = x.shape
        q, k, v = (w(x).view(b, n, self.n_heads, self.d_z) for w in (self.w_q, self.w_k, self.w_v))
        position = torch.arange(n, device=x.device)
        distance = (position[None, :] - position[:, None]).clamp(-self.clip, self.clip) + self.clip
        content = torch.einsum("bihd,bjhd->bhij", q, k)
        relative = torch.einsum("bihd,ijd->bhij", q, self.a_k[distance])
        e = (content + relative) / math.sqrt(self.d_z)
        alpha = e.masked_fill(mask[:, None, None, :] == 0, float("-inf")).softmax(dim=-1)
        z = torch.einsum("bhij,bjhd->bihd", alpha, v) + torch.einsum("bhij,ijd->bihd", alpha, self.a_v[distance])
        return self.w_o(z.reshape(b, n, -1))


class Encoder(nn.Module):
    def __init__(self, vocab=61, d_model=60, n_heads=5, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, d_model)
        self.attention = nn.ModuleList(RelativeMultiHeadAttention(d_model, n_heads) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(layers))

    def forward(self, tokens, mask):
        x = self.embed(tokens)
        for attention, norm in zip(self.attention, self.norm, strict=True):
            x = norm(x + attention(x, mask))
        return x


def make():
    return Encoder(), {"tokens": torch.randint(61, (2, 11)), "mask": torch.ones(2, 11, dtype=torch.long)}
