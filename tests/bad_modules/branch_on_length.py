"""Longer inputs are scaled by another factor, as dynamic NTK does."""

import torch
from torch import nn

V, D, H = 17, 12, 3
IDS = torch.arange(32).reshape(2, 16) % V


class Bad(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(V, D)

    def forward(self, input_ids):
        x = self.token(input_ids)
        if x.shape[1] > 14:
            x = x * 0.5
        return x


class Mended(Bad):
    def forward(self, input_ids):
        x = self.token(input_ids)
        tokens = torch.ones_like(input_ids).cumsum(1)[:, -1:, None]
        return torch.where(tokens > 14, x * 0.5, x)


def make():
    return Bad(), {"input_ids": IDS}


def mended():
    return Mended(), {"input_ids": IDS}
