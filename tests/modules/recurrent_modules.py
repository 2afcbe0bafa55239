"""Small decoders of causal convolutions and recurrent layers, as people write them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB, HIDDEN = 31, 18


class Causal(nn.Conv1d):
    """A causal convolution, padded on the left before it is called."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, ((self.kernel_size[0] - 1) * self.dilation[0], 0)))


class WaveNet(nn.Module):
    """Gated convolutions: dilated ones, one by channels, and one that pads both sides and is cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, VOCAB)
        self.dilated = nn.ModuleList(Causal(HIDDEN, 2 * HIDDEN, 3, dilation=rate) for rate in (1, 2, 4))
        self.by_channel = Causal(HIDDEN, HIDDEN, 4, groups=HIDDEN)
        self.cut = nn.Conv1d(HIDDEN, HIDDEN, 3, padding=2, bias=False)
        self.mix = nn.Conv1d(HIDDEN, HIDDEN, 1)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids).transpose(1, 2)
        for layer in self.dilated:
            gate, update = layer(x).chunk(2, 1)
            x = x + gate.sigmoid() * update.tanh()
        x = x + F.silu(self.by_channel(x)) + self.cut(x)[..., : x.shape[-1]]
        return self.head(self.mix(x).transpose(1, 2))


class Recurrent(nn.Module):
    """Two layers of an LSTM from zeros, then a GRU with tokens first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, HIDDEN), nn.Linear(7, VOCAB)
        self.lstm = nn.LSTM(HIDDEN, 11, num_layers=2, batch_first=True)
        self.gru = nn.GRU(11, 7, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        start = x.new_zeros(2, x.shape[0], 11)
        x, _ = self.lstm(x, (start, start))
        return self.head(self.gru(x.transpose(0, 1))[0].transpose(0, 1))


class Backwards(Recurrent):
    """A layer that reads tokens from both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(11, 7, bidirectional=True)
        self.head = nn.Linear(14, VOCAB)


class Started(nn.Module):
    """A recurrent layer that starts from a learned state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, HIDDEN), nn.Linear(7, VOCAB)
        self.gru, self.start = nn.GRU(HIDDEN, 7, batch_first=True), nn.Parameter(torch.ones(1, 1, 7))

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.gru(self.embed(input_ids), self.start.expand(-1, input_ids.shape[0], -1).contiguous())[0])


class Centred(WaveNet):
    """A convolution that reads later tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(HIDDEN, HIDDEN, 3, padding=1)


class Counting(Recurrent):
    """What is added to a token depends on how many came before it in the call."""

    def forward(self, input_ids: Tensor) -> Tensor:
        at = torch.arange(input_ids.shape[1])[None, :, None]
        return self.head(
            self.gru(self.lstm(self.embed(input_ids) * (1 + at % 3))[0].transpose(0, 1))[0].transpose(0, 1)
        )


def random(module: nn.Module) -> nn.Module:
    """The module in eval mode with weights that are large enough for every token to count."""
    generator = torch.Generator().manual_seed(5)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
    return module.eval()
