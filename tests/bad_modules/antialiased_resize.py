"""A table of positions, interpolated to the length as images' are."""

import torch
import torch.nn.functional as F
from torch import nn

D = 12


class Bad(nn.Module):
    antialias = True

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(1, D, 7, 1))

    def forward(self, x):
        size = (x.shape[1], 1)
        rows = F.interpolate(self.table, size=size, mode="bicubic", antialias=self.antialias)
        return x + rows[0, :, :, 0].t()


class Mended(Bad):
    antialias = False


def make():
    return Bad(), {"x": torch.randn(2, 16, D)}


def mended():
    return Mended(), {"x": torch.randn(2, 16, D)}
