"""A loop over the tokens that the mask counts."""

import torch
from torch import nn

V, D, H = 17, 12, 3
IDS = torch.arange(32).reshape(2, 16) % V


class Bad(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(V, D)

    def forward(self, input_ids, attention_mask):
        x = self.token(input_ids)
        out = torch.zeros_like(x)
        for t in range(int(attention_mask.sum(1).max())):
            out[:, t] = x[:, t] * 2
        return out


class Mended(Bad):
    def forward(self, input_ids, attention_mask):
        return self.token(input_ids) * 2 * attention_mask[..., None]


def make():
    return Bad(), {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def mended():
    return Mended(), {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
