"""SDPA with enable_gqa."""

import torch
import torch.nn.functional as F
from torch import nn

V, D, H = 17, 12, 3
IDS = torch.arange(32).reshape(2, 16) % V


class Followed(nn.Module):
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


def make():
    return Followed(), {"input_ids": IDS}
