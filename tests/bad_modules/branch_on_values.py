"""A mask that is applied only where it masks something."""

import torch
from torch import nn

V, D, H = 17, 12, 3
IDS = torch.arange(32).reshape(2, 16) % V


class Bad(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(V, D)

    def forward(self, input_ids, attention_mask):
        x = self.token(input_ids)
        if not attention_mask.bool().all():
            x = x.masked_fill(attention_mask[..., None] == 0, 0)
        return x


class Mended(Bad):
    def forward(self, input_ids, attention_mask):
        return self.token(input_ids).masked_fill(attention_mask[..., None] == 0, 0)


def make():
    return Bad(), {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def mended():
    return Mended(), {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
