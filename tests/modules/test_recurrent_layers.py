"""`nn.LSTM`, `nn.GRU` and `nn.RNN` with states that are inputs, zeros or parameters, at any length and batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posexport
from tests.small import proven
from tests.tolerances import agree

IN, OUT = 5, 7


class Started(nn.Module):
    """A layer with the states of its caller, zeros of the batch's size, or rows of a parameter."""

    def __init__(self, kind: Any, states: str, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.states = kind(IN, OUT, **settings), states
        self.count = self.rnn.num_layers * (1 + self.rnn.bidirectional)
        self.start = nn.Parameter(torch.randn(self.count, 1, OUT))

    def forward(self, x: Tensor, h: Tensor | None = None, c: Tensor | None = None) -> Any:
        batch = x.shape[0 if self.rnn.batch_first else 1]
        if self.states == "zeros":
            h = c = torch.zeros(self.count, batch, OUT, dtype=x.dtype)
        if self.states == "parameter":
            h = c = self.start.expand(-1, batch, -1).contiguous()
        out, last = self.rnn(x, (h, c) if isinstance(self.rnn, nn.LSTM) else h)
        return {"out": out, "last": last[1] if isinstance(last, tuple) else last}


@pytest.mark.all(but=("relu",))
@pytest.mark.parametrize(
    ("kind", "states", "settings"),
    [
        pytest.param(
            nn.LSTM, "inputs", {"num_layers": 2, "bidirectional": True, "batch_first": True}, id="LSTM of two layers"
        ),
        pytest.param(nn.LSTM, "zeros", {"bias": False}, id="zeros, tokens first"),
        pytest.param(nn.GRU, "zeros", {"num_layers": 2, "batch_first": True}, id="GRU"),
        pytest.param(nn.GRU, "parameter", {"bidirectional": True, "batch_first": True}, id="rows of a parameter"),
        pytest.param(nn.RNN, "inputs", {"nonlinearity": "relu", "bidirectional": True, "batch_first": True}, id="relu"),
    ],
)
def test_a_layer_with_states(tmp_path: Path, kind: Any, states: str, settings: dict[str, Any]) -> None:
    module = Started(kind, states, **settings).eval()

    def inputs(batch: int, length: int) -> dict[str, Tensor]:
        x = torch.randn((batch, length, IN) if module.rnn.batch_first else (length, batch, IN))
        given = ("h", "c")[: 1 + (kind is nn.LSTM)] if states == "inputs" else ()
        return {"x": x, **{name: torch.randn(module.count, batch, OUT) for name in given}}

    # as many rows as layers and directions: which of the two axes of the states varies is found out
    proven(module, tmp_path / "b", example_inputs=inputs(2, 9), lengths=[1, 23])
    tensors = inputs(2, 17)
    got = posexport.load(tmp_path / "b").run({name: tensor.numpy() for name, tensor in tensors.items()})
    for name, right in module(**tensors).items():
        agree(got[name], right.detach().numpy(), "model in float32", np.float32)
