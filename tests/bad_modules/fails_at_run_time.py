"""Tokens are pooled to four segments: the exporter writes the traced segments as constants."""

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
        return F.adaptive_avg_pool1d(self.token(input_ids).transpose(1, 2), 4)


class Mended(Bad):
    def forward(self, input_ids):
        x = self.token(input_ids)
        at = torch.arange(x.shape[1], device=x.device).to(x.dtype) / x.shape[1] * 4
        near = (1 - (at - torch.arange(4, device=x.device)[:, None] - 0.5).abs()).clamp(min=0) + 0.01
        return (near @ x).transpose(1, 2)


def make():
    return Bad(), {"input_ids": IDS}


def mended():
    return Mended(), {"input_ids": IDS}
