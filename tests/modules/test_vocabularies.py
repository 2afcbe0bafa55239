"""Integers as inputs: ids of tables however they are looked up, and numbers that are no ids."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posexport
from posexport.errors import PosexportError
from posexport.modules.live_module import module_source
from tests.small import proven
from tests.tolerances import agree

ROWS, D = 41, 12
IDS = torch.arange(18).reshape(2, 9) % 7


class Timed(nn.Module):
    """The step of a diffusion, cast to a real number."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(D, D)
        self.register_buffer("rates", torch.exp(-torch.arange(float(D))))

    def forward(self, x: Tensor, timestep: Tensor) -> Tensor:
        return self.project(x + torch.sin(timestep[:, None].float() * self.rates)[:, None])  # type: ignore[no-any-return]


class Looked(nn.Module):
    """A table that is a parameter, looked up in one of four ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.table, self.way = nn.Parameter(torch.randn(ROWS, D)), way

    def forward(self, ids: Tensor) -> Tensor:
        if self.way == "select":
            return self.table.index_select(0, ids.flatten()).unflatten(0, ids.shape).tanh()
        if self.way == "one-hot":
            return (F.one_hot(ids, ROWS).to(self.table.dtype) @ self.table).tanh()
        if self.way == "hashed":
            return self.table[(7 * ids + 3) % ROWS].tanh()
        return self.table[ids + 2 if self.way == "offset" else ids].tanh()


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv = nn.Parameter(torch.randn(ROWS, D)), nn.Linear(D, 3 * D)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table[ids]
        q, k, v = (y.unflatten(-1, (3, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return x @ self.table.T


def test_integers_that_are_cast_have_no_bound(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = Timed().eval(), torch.randn(2, 9, D)
    inputs = {"x": x, "timestep": torch.tensor([5, 42])}
    proven(module, tmp_path / "b", example_inputs=inputs, lengths=[5], threads=1)
    session = posexport.load(tmp_path / "b")
    assert [spec.role for spec in session.inputs] == ["values", "numbers"]
    steps = torch.tensor([999, 1500])
    (output,) = session.run({"x": x.numpy(), "timestep": steps.numpy()}).values()
    agree(output, module(x, steps), "model in float32", np.float32)
    with pytest.raises(PosexportError, match=r"timestep holds -1 .* integers from 0 on"):
        session.run({"x": x.numpy(), "timestep": np.array([5, -1])})


@pytest.mark.parametrize(("way", "size"), [("index", ROWS), ("offset", ROWS - 2), ("select", ROWS), ("one-hot", ROWS)])
def test_ids_are_bounded_by_the_table(way: str, size: int) -> None:
    source = module_source(Looked(way).eval(), {"ids": IDS})
    (spec,) = source.inputs
    assert (spec.role, spec.size, source.remarks) == ("tokens", size, [])


def test_hashed_ids_have_no_bound() -> None:
    source = module_source(Looked("hashed").eval(), {"ids": IDS})
    assert source.inputs[0].role == "numbers"
    assert "input ids: all integers from 0 on are taken" in source.remarks[0]


def test_a_table_gives_a_decoder_its_vocabulary(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Decoder().eval()
    done = posexport.convert(module, tmp_path / "b", example_inputs={"ids": IDS}, threads=1, verify=False)
    assert (done.manifest.task, done.manifest.inputs[0].size) == ("text-generation", ROWS)
    (completion,) = posexport.load(tmp_path / "b").generate([[5, 17]], max_new_tokens=3).completions
    assert completion.tokens[0] == int(module(torch.tensor([[5, 17]]))[0, -1].argmax())
