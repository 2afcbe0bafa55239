"""A forward of keywords alone, for which `dynamic_shapes` had to mirror them."""

import torch
from torch import nn

V, D, H = 17, 12, 3
IDS = torch.arange(32).reshape(2, 16) % V


class Followed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(V, D)

    def forward(self, **inputs):
        return self.token(inputs["input_ids"]) * inputs["attention_mask"][..., None]


def make():
    return Followed(), {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
