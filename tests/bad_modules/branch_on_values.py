"""A branch by whether an id occurs."""

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
        if (input_ids == 3).any():
            x = 2 * x
        return x


class Mended(Bad):
    def forward(self, input_ids):
        x = self.token(input_ids)
        return torch.where((input_ids == 3).any(1)[:, None, None], 2 * x, x)


def make():
    return Bad(), {"input_ids": IDS}


def mended():
    return Mended(), {"input_ids": IDS}
