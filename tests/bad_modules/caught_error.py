"""Short inputs cannot be padded by reflection, and are padded by zeros where that fails."""

import torch
import torch.nn.functional as F
from torch import nn

V, D, SIDE = 17, 12, 14
IDS = torch.arange(64).reshape(2, 32) % V


class Bad(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.pad = nn.Embedding(V, D), nn.ReflectionPad1d(SIDE)
        self.convolution = nn.Conv1d(D, D, 2 * SIDE + 1)

    def padded(self, x):
        try:
            return self.pad(x)
        except Exception:  # noqa: BLE001 (as packages write it)
            return F.pad(x, (SIDE, SIDE))

    def forward(self, input_ids):
        return self.convolution(self.padded(self.token(input_ids).mT)).mT


class Mended(Bad):
    def padded(self, x):
        return F.pad(x, (SIDE, SIDE))


def make():
    return Bad(), {"input_ids": IDS}


def mended():
    return Mended(), {"input_ids": IDS}
