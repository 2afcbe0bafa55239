"""A bias by distance as the score_mod of FlexAttention."""

import torch
import torch.nn.functional as F
from torch import nn

V, D, H = 17, 12, 3
IDS = torch.arange(32).reshape(2, 16) % V


class Bad(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.qkv = nn.Embedding(V, D), nn.Linear(D, 3 * D)

    def forward(self, input_ids):
        B, T = input_ids.shape
        q, k, v = self.qkv(self.token(input_ids)).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        return self.attend(q, k, v).transpose(1, 2).reshape(B, T, D)

    def attend(self, q, k, v):
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(q, k, v, score_mod=lambda score, _b, _h, i, j: score - (i - j).abs())


class Mended(Bad):
    def attend(self, q, k, v):
        at = torch.arange(q.shape[2], device=q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=-(at[:, None] - at).abs()[None, None].to(q.dtype))


def make():
    return Bad(), {"input_ids": IDS}


def mended():
    return Mended(), {"input_ids": IDS}
