"""`nn.TransformerEncoder` with padding: fast path and nested tensors are switched off."""

import torch
from torch import nn

V, D, H = 17, 12, 3
IDS = torch.arange(32).reshape(2, 16) % V


class Followed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(D, 2, 20, batch_first=True)
        self.token, self.encoder = nn.Embedding(V, D), nn.TransformerEncoder(layer, 1, enable_nested_tensor=True)

    def forward(self, input_ids, attention_mask):
        return self.encoder(self.token(input_ids), src_key_padding_mask=attention_mask == 0)


def make():
    return Followed(), {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
