"""`nn.TransformerEncoder` with a causal mask and no is_causal=, `_detect_is_causal_mask`."""

import torch
from torch import nn

V, D, H = 17, 12, 3
IDS = torch.arange(32).reshape(2, 16) % V


class Followed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(D, H, 20, batch_first=True)
        self.token, self.encoder = nn.Embedding(V, D), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, input_ids):
        x = self.token(input_ids)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.encoder(x, mask=later)


def make():
    return Followed(), {"input_ids": IDS}
