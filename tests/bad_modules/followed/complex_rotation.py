"""The rotation of the first Llama, by `polar` and `view_as_complex`."""

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
        angles = torch.arange(x.shape[1])[:, None] / torch.arange(1, D // 2 + 1)
        turned = torch.view_as_complex(x.unflatten(-1, (D // 2, 2))) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(2)


def make():
    return Followed(), {"input_ids": IDS}
