"""Numbers that users' modules make in forward: counted along an axis, complex, or float32 by name.

PyTorch's exporter fixes an axis for `torch.linspace`, writes `torch.arange(0.5, n)` as 0, 1, 2 ..., and has no
operators for most functions that move complex numbers. A reference in float64 is one throughout, whatever names a
dtype.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posexport
from posexport.modules.live_module import module_source
from posexport.sources.torch_fixes import complex_views
from posexport.sources.torch_fixes.default_dtype import computing_in
from tests.small import proven
from tests.tolerances import agree

D, HEADS, V = 20, 5, 31
EXAMPLE = {"x": torch.randn(2, 7, D, generator=torch.Generator().manual_seed(0))}


class Scaled(nn.Module):
    """Tokens times numbers along their axis."""

    def __init__(self, numbers: Any) -> None:
        super().__init__()
        self.numbers, self.linear = numbers, nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x * self.numbers(x.shape[1])[:, None])
        return result


COUNTED = {
    "linspace": lambda n: torch.linspace(-1, 1, n),
    "linspace to a size": lambda n: torch.linspace(start=0.5, end=n - 0.5, steps=n),
    "linspace of a tensor": lambda n: torch.linspace(0, torch.tensor(2.5), steps=n, dtype=torch.float32),
    "middles": lambda n: torch.arange(0.5, n) / n,
    "middles from below 0": lambda n: torch.arange(-1.5, n - 2, 1),
    "halves": lambda n: torch.arange(0, n, 0.5)[::2] + torch.arange(2, n + 2, 0.25)[1::4],
}


@pytest.mark.parametrize("case", COUNTED)
def test_numbers_counted_along_an_axis_are_right_at_every_length(tmp_path: Path, case: str) -> None:
    torch.manual_seed(0)
    module = Scaled(COUNTED[case]).eval()
    posexport.convert(module, tmp_path / "b", example_inputs=EXAMPLE, verify=False)
    session = posexport.load(tmp_path / "b")
    for length in (1, 2, 7, 12, 65):
        x = torch.randn(3, length, D)
        agree(session.run({"x": x.numpy()})["output"], module(x).detach().numpy(), "model in float32", np.float32)


class Complex(nn.Module):
    """A decoder whose rotary embedding is a table of complex numbers, as in Llama's first code."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.qkv, self.out = nn.Embedding(V, D), nn.Linear(D, 3 * D), nn.Linear(D, V)
        angles = torch.outer(torch.arange(64.0), 10000 ** -torch.arange(0, 1, 0.5))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        B, T = input_ids.shape
        turns = self.turns[:T][None, :, None]
        x = self.word(input_ids)
        q, k, v = self.qkv(x).view(B, T, 3, HEADS, D // HEADS).unbind(2)
        q, k = (
            torch.view_as_real(torch.view_as_complex(y.float().reshape(B, T, HEADS, -1, 2)) * turns).flatten(3)
            for y in (q, k)
        )
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / math.sqrt(D // HEADS)
        seen = scores + torch.full((T, T), -torch.inf).triu(1)
        context = (seen.softmax(-1) @ v.transpose(1, 2)).transpose(1, 2).reshape(B, T, D)
        logits: Tensor = self.out(x + context)
        return logits


@pytest.mark.all
def test_a_rotary_table_of_complex_numbers_goes_with_a_cache(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ids = {"input_ids": torch.randint(0, V, (2, 7))}
    done = proven(Complex().eval(), tmp_path / "b", example_inputs=ids, lengths=[1, 17])
    assert done.manifest.task == "text-generation"


MOVED = [
    (Tensor.unsqueeze, (-1,)),
    (Tensor.unsqueeze, (1,)),
    (Tensor.select, (-1, 2)),
    (Tensor.index_select, (-2, torch.tensor([1, 0]))),
    (Tensor.expand, (5, 2, 3)),
    (Tensor.expand, ((5, -1, 3),)),
    (Tensor.__getitem__, ((None, ..., slice(0, 2)),)),
    (Tensor.__getitem__, (torch.tensor([1, 1, 0]),)),
    (Tensor.__getitem__, ((slice(None), 1),)),
]


@pytest.mark.parametrize(("func", "rest"), MOVED)
def test_complex_numbers_move_as_their_parts_do(func: Any, rest: tuple[Any, ...]) -> None:
    table = torch.randn(2, 3, dtype=torch.complex64)
    assert torch.equal(complex_views.called(func, (table, *rest), {}), func(table, *rest))


def test_a_reference_in_float64_is_one_throughout() -> None:
    x = torch.randn(3, dtype=torch.float64)
    with computing_in(torch.float64):
        real_ones = [
            x.float(),
            x.to(torch.float32),
            x.type(torch.float32),
            torch.zeros(2),
            torch.ones(2, dtype=torch.float32),
        ]
        complex_ones = [x.to(torch.complex64), x.cfloat()]
    assert {each.dtype for each in real_ones} == {torch.float64}
    assert {each.dtype for each in complex_ones} == {torch.complex128}
    with computing_in(torch.float32):
        assert x.float().dtype == torch.float32
        assert torch.zeros(2).dtype == torch.float32


def test_a_module_that_names_float32_is_proven(tmp_path: Path) -> None:
    class OneHot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(V, D)

        def forward(self, input_ids: Tensor) -> Tensor:
            result: Tensor = self.linear(nn.functional.one_hot(input_ids, V).float())
            return result

    torch.manual_seed(0)
    ids = {"input_ids": torch.randint(0, V, (2, 7))}
    source = module_source(OneHot().eval(), ids)
    assert source.outputs[0].axes == ["batch_size", "sequence_length", D]
    proven(OneHot().eval(), tmp_path / "b", example_inputs=ids, lengths=[1, 17])


class Recognizer(nn.Module):
    """Logits of frames, how many of each row count, the best class of each, and which are beyond the row's end."""

    def __init__(self, wrong: int = 0) -> None:
        super().__init__()
        self.wrong = wrong
        self.convolution = nn.Conv1d(D, D, 3, stride=2, padding=1)
        self.position = nn.Embedding(60, D)
        self.layer = nn.TransformerEncoderLayer(D, HEADS, 2 * D, batch_first=True)
        self.head = nn.Linear(D, V)

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = self.convolution(features.mT).mT
        lengths = (feature_lengths + 1) // 2 - self.wrong
        positions = torch.arange(x.shape[1])
        beyond = positions >= lengths[:, None]
        logits = self.head(self.layer(x + self.position(positions), src_key_padding_mask=beyond))
        return logits, lengths, logits.argmax(-1).int(), beyond


@pytest.mark.all(but=("fp32",))
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_outputs_of_integers_are_compared_one_by_one(tmp_path: Path, precision: Any) -> None:
    torch.manual_seed(0)
    example = {"features": torch.randn(2, 37, D), "feature_lengths": torch.tensor([37, 22])}
    right, wrong = Recognizer().eval(), Recognizer(wrong=1).eval()
    wrong.load_state_dict(right.state_dict())
    how: Any = {"example_inputs": example, "lengths": [2, 17, 37]}
    proven(right, tmp_path / "b", precision=precision, **how)
    outputs = posexport.load(tmp_path / "b").run({name: x.numpy() for name, x in example.items()})
    assert outputs["output_1"].tolist() == [19, 11]
    types = {name: str(x.dtype) for name, x in outputs.items()}
    assert types == {"output_0": "float32", "output_1": "int64", "output_2": "int32", "output_3": "bool"}
    assert posexport.verify(tmp_path / "b").passed  # of the stored sample
    report = posexport.verify(tmp_path / "b", against=wrong, example_inputs=example, lengths=[17])
    failed = {point.output for point in report.points if point.verdict == "fail"}
    assert {"output_1", "output_3"} <= failed
