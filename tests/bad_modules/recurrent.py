"""An LSTM with projections behind an embedding."""

import torch
import torch.nn.functional as F
from torch import nn

V, D, H = 17, 12, 3
IDS = torch.arange(32).reshape(2, 16) % V


class Bad(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.rnn = nn.Embedding(V, D), nn.LSTM(D, D, proj_size=4, batch_first=True)

    def forward(self, input_ids):
        return self.rnn(self.token(input_ids))[0]


class Mended(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.past = nn.Embedding(V, D), nn.Conv1d(D, D, 4)

    def forward(self, input_ids):
        x = self.token(input_ids).transpose(1, 2)
        return self.past(F.pad(x, (3, 0))).transpose(1, 2)


def make():
    return Bad(), {"input_ids": IDS}


def mended():
    return Mended(), {"input_ids": IDS}
