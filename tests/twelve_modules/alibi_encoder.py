"""An encoder with ALiBi as research libraries have it: slopes in a buffer, a float bias [H, T, S] as SDPA's mask."""

import math

import torch
import torch.nn.functional as F
from torch import einsum, nn


def exists(val):
    return val is not None


class AlibiPositionalBias(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        slopes = torch.tensor(self._get_slopes(heads)).view(heads, 1, 1)
        self.register_buffer("slopes", slopes, persistent=False)

    @staticmethod
    def _get_slopes(heads):
        def get_slopes_power_of_2(n):
            start = 2 ** (-(2 ** -(math.log2(n) - 3)))
            return [start * start**i for i in range(n)]

        if math.log2(heads).is_integer():
            return get_slopes_power_of_2(heads)
        closest = 2 ** math.floor(math.log2(heads))
        return get_slopes_power_of_2(closest) + get_slopes_power_of_2(2 * closest)[0::2][: heads - closest]

    def forward(self, i, j):
        i_arange = torch.arange(j - i, j, device=self.slopes.device)
        j_arange = torch.arange(j, device=self.slopes.device)
        return -torch.abs(j_arange[None, None, :] - i_arange[None, :, None]) * self.slopes


class Attention(nn.Module):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(dim, 2 * heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)

    def forward(self, x, bias, mask=None):
        b, n, _ = x.shape
        x = self.norm(x)
        q, k, v = (self.to_q(x), *self.to_kv(x).chunk(2, dim=-1))
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        if exists(mask):
            bias = bias.masked_fill(mask[:, None, None, :] == 0, -torch.finfo(q.dtype).max)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))


class Encoder(nn.Module):
    def __init__(self, num_tokens=61, dim=48, depth=2, heads=12, dim_head=8):
        super().__init__()
        self.token_emb = nn.Embedding(num_tokens, dim)
        self.rel_pos = AlibiPositionalBias(heads)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    Attention(dim, heads, dim_head),
                    nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim * 2), nn.GELU(), nn.Linear(dim * 2, dim)),
                ]
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)
        self.pool = nn.Parameter(torch.randn(dim))

    def forward(self, x, mask=None):
        x = self.token_emb(x)
        bias = self.rel_pos(x.shape[1], x.shape[1])
        for attn, ff in self.layers:
            x = x + attn(x, bias, mask)
            x = x + ff(x)
        x = self.norm(x)
        return x, einsum("b n d, d -> b n", x, self.pool)


def make():
    return Encoder(), (torch.randint(61, (3, 17)), torch.ones(3, 17, dtype=torch.long))
