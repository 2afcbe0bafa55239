"""A branch by a remainder of the length, of which both ways agree: once `Ne(Mod(L, 8), 0)`."""

import torch
import torch.nn.functional as F
from torch import nn

V, D, H = 17, 12, 3
IDS = torch.arange(32).reshape(2, 16) % V


class Followed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(V, D)

    def forward(self, input_ids):
        x = self.token(input_ids)
        if x.shape[1] % 8 != 0:
            x = F.pad(x, (0, 0, 0, 8 - x.shape[1] % 8))
        return x.tanh()[:, : input_ids.shape[1]]


def make():
    return Followed(), {"input_ids": IDS}
