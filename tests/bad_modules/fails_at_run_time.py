"""Tokens are averaged over four segments: the exporter writes the traced segments as constants."""

import torch
import torch.nn.functional as F
from torch import nn

V, D, H = 17, 12, 3
IDS = torch.arange(32).reshape(2, 16) % V


class Bad(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(V, D)

    def forward(self, input_ids):
        return F.interpolate(self.token(input_ids).transpose(1, 2), 4, mode="area")


class Mended(Bad):
    def forward(self, input_ids):
        return F.adaptive_avg_pool1d(self.token(input_ids).transpose(1, 2), 4)


def make():
    return Bad(), {"input_ids": IDS}


def mended():
    return Mended(), {"input_ids": IDS}
