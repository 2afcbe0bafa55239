"""Rows packed into a nested tensor for one operation."""

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
        rows = torch.nested.nested_tensor(list(self.token(input_ids)))
        return torch.nested.to_padded_tensor(rows * 2, 0.0)


class Mended(Bad):
    def forward(self, input_ids):
        return self.token(input_ids) * 2


def make():
    return Bad(), {"input_ids": IDS}


def mended():
    return Mended(), {"input_ids": IDS}
