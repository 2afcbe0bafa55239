"""Distances between tokens by torch.cdist."""

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
        return x * torch.cdist(x, x).mean(-1, keepdim=True)


class Mended(Bad):
    def forward(self, input_ids):
        x = self.token(input_ids)
        apart = (x[:, :, None] - x[:, None]).square().sum(-1)
        return x * apart.sqrt().mean(-1, keepdim=True)


def make():
    return Bad(), {"input_ids": IDS}


def mended():
    return Mended(), {"input_ids": IDS}
