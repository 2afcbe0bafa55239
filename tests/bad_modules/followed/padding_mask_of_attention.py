"""SDPA with a padding mask as booleans, whose axes stay dynamic."""

import torch
import torch.nn.functional as F
from torch import nn

V, D, H = 17, 12, 3
IDS = torch.arange(32).reshape(2, 16) % V


class Followed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.qkv = nn.Embedding(V, D), nn.Linear(D, 3 * D)

    def forward(self, input_ids, attention_mask):
        B, T = input_ids.shape
        q, k, v = self.qkv(self.token(input_ids)).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        return self.attend(q, k, v, attention_mask).transpose(1, 2).reshape(B, T, D)

    def attend(self, q, k, v, attention_mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask[:, None, None].bool())


def make():
    return Followed(), {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
