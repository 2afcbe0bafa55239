"""One head of attention, without an axis for it."""

import torch
import torch.nn.functional as F
from torch import nn

V, D, H = 17, 12, 3
IDS = torch.arange(32).reshape(2, 16) % V


class Bad(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.q, self.k, self.v = nn.Embedding(V, D), nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, input_ids):
        x = self.token(input_ids)
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


class Mended(Bad):
    def forward(self, input_ids):
        x = self.token(input_ids).unsqueeze(1)
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)).squeeze(1)


def make():
    return Bad(), {"input_ids": IDS}


def mended():
    return Mended(), {"input_ids": IDS}
