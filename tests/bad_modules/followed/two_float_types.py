"""A float64 constant beside float32: once `bound to different types`."""

import torch
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
        return (x * torch.linspace(0, 1, D, dtype=torch.float64)).to(x.dtype)


def make():
    return Followed(), {"input_ids": IDS}
