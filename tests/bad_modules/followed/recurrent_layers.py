"""LSTMs with `proj_size`, and packed rows: once the steps of the traced length."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

V, D = 17, 12
IDS = torch.arange(32).reshape(2, 16) % V


class Followed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(V, D)
        self.rnn = nn.LSTM(D, D, 2, proj_size=4, batch_first=True, bidirectional=True)

    def forward(self, input_ids, lengths):
        rows = pack_padded_sequence(self.token(input_ids), lengths, batch_first=True, enforce_sorted=False)
        states, (_, cells) = self.rnn(rows)
        return pad_packed_sequence(states, batch_first=True, total_length=input_ids.shape[1])[0], cells[-1]


def make():
    return Followed(), {"input_ids": IDS, "lengths": torch.tensor([16, 9])}
