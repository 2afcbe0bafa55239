"""Packed rows and projected states of recurrent layers, at other sizes than the example's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import posexport
from tests.small import proven
from tests.tolerances import agree

IN, OUT, PROJECTED = 5, 7, 4


class Packed(nn.Module):
    """States of padded rows, as long as the input or as the longest row, and those after each row's last token."""

    def __init__(self, kind: Any, *, whole: bool = False, array: bool = False, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.whole = kind(IN, OUT, 2, batch_first=True, bidirectional=True, **settings), whole
        self.array = array

    def forward(self, x: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        counts = lengths.cpu().numpy() if self.array else lengths.cpu()
        rows = pack_padded_sequence(x, counts, batch_first=True, enforce_sorted=False)
        states, last = self.rnn(rows)
        total = None if self.whole else x.shape[1]
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=total, padding_value=-1.0)
        return {"states": states, "last": (last[0] if isinstance(last, tuple) else last).transpose(0, 1)}


class Projected(nn.Module):
    """An LSTM that starts from given states, in both directions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.LSTM(IN, OUT, proj_size=PROJECTED, batch_first=True, bidirectional=True, bias=False)

    def forward(self, x: Tensor, start: Tensor) -> dict[str, Tensor]:
        before = start[None].expand(2, -1, -1).contiguous()
        states, (last, cells) = self.rnn(x, (before, torch.zeros(2, x.shape[0], OUT, dtype=x.dtype)))
        return {"states": states, "last": last.transpose(0, 1), "cells": cells.transpose(0, 1)}


def check(folder: Path, module: nn.Module, example: dict[str, Tensor], other: dict[str, Tensor]) -> Any:
    done = proven(module.eval(), folder / "b", example_inputs=example, lengths=[1, 9], threads=1)
    got = posexport.load(folder / "b").run({name: tensor.numpy() for name, tensor in other.items()})
    with torch.no_grad():
        for name, tensor in module(**other).items():
            agree(got[name], tensor, "model in float32", np.float32)
    return done


@pytest.mark.all(but=("LSTM with projections",))
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        pytest.param(nn.LSTM, {"proj_size": PROJECTED}, id="LSTM with projections"),
        pytest.param(nn.GRU, {}, id="GRU"),
        pytest.param(nn.GRU, {"array": True}, id="lengths as an array"),
        pytest.param(nn.RNN, {"whole": True}, id="as long as the longest row"),
    ],
)
def test_packed_rows(tmp_path: Path, kind: Any, settings: dict[str, Any]) -> None:
    module = Packed(kind, **settings)
    example = {"x": torch.randn(3, 9, IN), "lengths": torch.tensor([4, 9, 7])}
    done = check(tmp_path, module, example, {"x": torch.randn(2, 13, IN), "lengths": torch.tensor([13, 2])})
    assert any("one row without padding" in remark for remark in done.remarks) == module.whole


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_a_projected_state_that_is_given(tmp_path: Path) -> None:
    example = {"x": torch.randn(3, 9, IN), "start": torch.randn(3, PROJECTED)}
    check(tmp_path, Projected(), example, {"x": torch.randn(2, 13, IN), "start": torch.randn(2, PROJECTED)})
