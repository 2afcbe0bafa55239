"""An encoder with T5's relative position bias by hand, through SDPA."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class RelativePositionBias(nn.Module):
    def __init__(self, num_buckets=32, max_distance=128, n_heads=5):
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.relative_attention_bias = nn.Embedding(num_buckets, n_heads)

    @staticmethod
    def _relative_position_bucket(relative_position, num_buckets=32, max_distance=128):
        ret = 0
        n = -relative_position
        num_buckets //= 2
        ret += (n < 0).to(torch.long) * num_buckets
        n = torch.abs(n)
        max_exact = num_buckets // 2
        is_small = n < max_exact
        val_if_large = max_exact + (
            torch.log(n.float() / max_exact) / math.log(max_distance / max_exact) * (num_buckets - max_exact)
        ).to(torch.long)
        val_if_large = torch.min(val_if_large, torch.full_like(val_if_large, num_buckets - 1))
        ret += torch.where(is_small, n, val_if_large)
        return ret

    def forward(self, qlen, klen):
        q_pos = torch.arange(qlen, dtype=torch.long)
        k_pos = torch.arange(klen, dtype=torch.long)
        rel_pos = k_pos[None, :] - q_pos[:, None]
        rp_bucket = self._relative_position_bucket(
            rel_pos, num_buckets=self.num_buckets, max_distance=self.max_distance
        )
        return self.relative_attention_bias(rp_bucket).permute(2, 0, 1).unsqueeze(0)


class T5LayerNorm(nn.Module):
    def __init__(self, d_model, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * x * torch.rsqrt(variance + self.eps)


class Layer(nn.Module):
    def __init__(self, d_model, d_kv, d_ff, n_heads):
        super().__init__()
        self.n_heads, self.d_kv = n_heads, d_kv
        self.norm1, self.norm2 = T5LayerNorm(d_model), T5LayerNorm(d_model)
        self.q = nn.Linear(d_model, n_heads * d_kv, bias=False)
        self.k = nn.Linear(d_model, n_heads * d_kv, bias=False)
        self.v = nn.Linear(d_model, n_heads * d_kv, bias=False)
        self.o = nn.Linear(n_heads * d_kv, d_model, bias=False)
        self.wi, self.wo = nn.Linear(d_model, d_ff, bias=False), nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x, mask):
        bsz, seq, _ = x.shape

        def shape(t):
            return t.view(bsz, seq, self.n_heads, self.d_kv).transpose(1, 2)

        h = self.norm1(x)
        y = F.scaled_dot_product_attention(
            shape(self.q(h)), shape(self.k(h)), shape(self.v(h)), attn_mask=mask, scale=1.0
        )
        x = x + self.o(y.transpose(1, 2).contiguous().view(bsz, seq, -1))
        return x + self.wo(F.relu(self.wi(self.norm2(x))))


class T5Encoder(nn.Module):
    def __init__(self, vocab=61, d_model=40, d_kv=8, d_ff=56, n_heads=5, n_layers=2):
        super().__init__()
        self.shared = nn.Embedding(vocab, d_model)
        self.position_bias = RelativePositionBias(n_heads=n_heads)
        self.block = nn.ModuleList(Layer(d_model, d_kv, d_ff, n_heads) for _ in range(n_layers))
        self.final_layer_norm = T5LayerNorm(d_model)

    def forward(self, input_ids, attention_mask):
        x = self.shared(input_ids)
        seq = input_ids.size(1)
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        bias = self.position_bias(seq, seq) + mask
        for layer in self.block:
            x = layer(x, bias)
        return {"last_hidden_state": self.final_layer_norm(x)}


def make():
    ids = torch.randint(61, (2, 19))
    return T5Encoder(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
