"""Modules of speech that take the length of every row, `forward(features, feature_lengths)`, as the kits for it do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posexport
from posexport.errors import PosexportError
from posexport.modules.live_module import module_source
from posexport.proof.grid.inputs import draw
from posexport.proof.grid.point import GridPoint
from tests.small import proven
from tests.tolerances import agree

D, HEADS, MELS, V = 60, 5, 80, 33


class Subsampled(nn.Module):
    """Two convolutions of stride 2 over frames and channels, then attention of the frames that are left."""

    def __init__(self, masked: float) -> None:
        super().__init__()
        self.masked = masked
        self.first, self.second = nn.Conv2d(1, 8, 3, 2), nn.Conv2d(8, 8, 3, 2)
        self.project, self.qkv, self.head = nn.Linear(8 * 19, D), nn.Linear(D, 3 * D), nn.Linear(D, V)
        self.far = nn.Parameter(torch.randn(HEADS, 61))

    def forward(self, x: Tensor, x_lens: Tensor) -> tuple[Tensor, Tensor]:
        frames = self.second(self.first(x[:, None]).relu()).relu()
        batch, channels, length, width = frames.shape
        h = self.project(frames.transpose(1, 2).reshape(batch, length, channels * width))
        lengths = ((x_lens - 1) // 2 - 1) // 2
        at = torch.arange(length)
        q, k, v = self.qkv(h).view(batch, length, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / 12**0.5 + self.far[:, (at[None] - at[:, None]).clamp(-30, 30) + 30]
        scores = scores.masked_fill((at[None] >= lengths[:, None])[:, None, None], self.masked)
        return self.head((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, D)), lengths


class Waves(nn.Module):
    """Samples, by convolutions of strides 5 and 2, to frames; those beyond a row's end are zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(1, D, 10, 5), nn.Conv1d(D, D, 3, 2)
        self.layer = nn.TransformerEncoderLayer(D, HEADS, D, batch_first=True)

    def forward(self, waveforms: Tensor, lengths: Tensor) -> Tensor:
        h = self.second(self.first(waveforms[:, None]).relu()).relu().mT
        beyond = torch.arange(h.shape[1]) >= (((lengths - 10) // 5 + 1 - 3) // 2 + 1)[:, None]
        result: Tensor = self.layer(h.masked_fill(beyond[..., None], 0.0), src_key_padding_mask=beyond)
        return result


def subsampled(masked: float) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return Subsampled(masked).eval(), {"x": torch.randn(2, 97, MELS), "x_lens": torch.tensor([97, 61])}


@pytest.mark.all(but=("-inf",))
@pytest.mark.parametrize("masked", [float("-inf"), -1e4])
def test_frames_that_convolutions_leave_are_padded_by_lengths(tmp_path: Path, masked: float) -> None:
    module, example = subsampled(masked)
    proven(module, tmp_path / "b", example_inputs=example, lengths=[7, 41])
    session = posexport.load(tmp_path / "b")
    x, lengths = torch.randn(3, 203, MELS), torch.tensor([203, 7, 110])
    outputs = session.run({"x": x.numpy(), "x_lens": lengths.numpy()})
    logits, counts = module(x, lengths)
    agree(outputs["output_0"], logits.detach().numpy(), "model in float32", np.float32)
    assert outputs["output_1"].tolist() == counts.tolist()
    # left out: every row is whole
    whole = session.run({"x": x.numpy()})["output_0"]
    agree(whole, module(x, torch.full((3,), 203))[0].detach().numpy(), "model in float32", np.float32)
    with pytest.raises(PosexportError, match=r"x_lens holds 204 at \[1\]; it takes lengths from 7 to 203"):
        session.run({"x": x.numpy(), "x_lens": np.array([1 + 202, 204, 9])})


def test_a_mask_that_lengths_make_is_tested_by_padding(tmp_path: Path) -> None:
    module, example = subsampled(-1e4)
    posexport.convert(module, tmp_path / "b", example_inputs=example, verify=False)
    blind, _ = subsampled(0.0)
    report: Any = posexport.verify(tmp_path / "b", against=blind, example_inputs=example, lengths=[41])
    paddings = {point.point.padding: point.verdict for point in report.points if point.output == "output_0"}
    assert paddings == {"none": "pass", "right": "fail", "ragged-right": "fail"}


@pytest.mark.parametrize(
    ("make", "least"),
    [
        (lambda: subsampled(-1e4), 7),
        (lambda: (Waves(), {"waveforms": torch.randn(2, 400), "lengths": torch.tensor([260, 400])}), 20),
    ],
)
def test_lengths_say_which_tokens_are_real(make: Callable[[], tuple[nn.Module, dict[str, Tensor]]], least: int) -> None:
    module, example = make()
    source = module_source(module.eval(), example)
    values, lengths = source.inputs
    assert values.axes == ["batch_size", "sequence_length", *[MELS] * (values.name == "x")]
    assert (lengths.role, lengths.axes) == ("lengths", ["batch_size"])
    assert source.outputs[0].axes[:2] == ["batch_size", "num_frames"]
    assert (source.limits.min_length, source.limits.paddings) == (least, ["right", "ragged-right"])
    point = GridPoint(batch=3, length=least + 40, padding="ragged-right", least=least)
    counts = draw(point, source.inputs)[lengths.name]
    assert counts.max() == least + 40
    assert least <= counts.min() < least + 40


class Reshaped(nn.Module):
    """A mask cut as the frames are, and frames filled up to windows of 8: sizes that PyTorch's solver cannot solve."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.project = nn.Conv1d(MELS, D, 3, 2), nn.Conv1d(D, D, 3, 2), nn.Linear(D, D)

    def forward(self, x: Tensor, x_lens: Tensor) -> Tensor:
        real = (torch.arange(x.shape[1]) < x_lens[:, None])[:, None]
        h = self.second(self.first(x.mT).relu()).mT.masked_fill(~real[:, :, 2::2][:, :, 2::2].mT, 0.0)
        count = h.shape[1]
        windows = nn.functional.pad(h, (0, 0, 0, -count % 8)).unflatten(1, (-1, 8))
        result: Tensor = self.project(windows.cumsum(2).flatten(1, 2)[:, :count])
        return result


def test_sizes_computed_in_two_ways_fix_no_axis(tmp_path: Path) -> None:
    torch.manual_seed(0)
    example = {"x": torch.randn(2, 67, MELS), "x_lens": torch.tensor([67, 50])}
    module = Reshaped().eval()
    assert posexport.convert(module, tmp_path / "b", example_inputs=example, lengths=[7, 8, 9, 10, 71]).good


class ToTheLongest(nn.Module):
    """A mask of as many columns as the longest row has, of frames that a convolution leaves."""

    def __init__(self, columns: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.columns, self.cut = columns, nn.Conv1d(MELS, D, 3, 2)
        self.layer = nn.TransformerEncoderLayer(D, HEADS, D, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        lengths = (lengths - 3) // 2 + 1
        columns = max(0, self.columns(lengths))
        beyond = torch.arange(columns).expand(lengths.shape[0], columns) >= lengths[:, None]
        result: Tensor = self.layer(self.cut(x.mT).mT, src_key_padding_mask=beyond)
        return result


def longest(columns: Callable[[Tensor], Any]) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return ToTheLongest(columns).eval(), {"x": torch.randn(2, 33, MELS), "lengths": torch.tensor([33, 20])}


@pytest.mark.all(but=("number",))
@pytest.mark.parametrize(
    "columns",
    [
        pytest.param(lambda lengths: int(lengths.max()), id="number"),
        pytest.param(lambda lengths: lengths.max(), id="tensor"),
        pytest.param(lambda lengths: torch.floor(lengths.float() / 1.0).long().amax().item(), id="by floats"),
    ],
)
def test_a_mask_to_the_longest_row_needs_a_whole_row(tmp_path: Path, columns: Callable[[Tensor], Any]) -> None:
    module, example = longest(columns)
    done = proven(module, tmp_path / "b", example_inputs=example, lengths=[7, 41])
    assert any("one row without padding, lengths.max() == x.shape[1]" in remark for remark in done.remarks)
    session = posexport.load(tmp_path / "b")
    x, lengths = torch.randn(3, 58, MELS), torch.tensor([20, 58, 31])
    (output,) = session.run({"x": x.numpy(), "lengths": lengths.numpy()}).values()
    agree(output, module(x, lengths).detach().numpy(), "model in float32", np.float32)
    with pytest.raises(
        PosexportError, match=r"lengths has no row of 58.*cut the other inputs to 57, the longest row's"
    ):
        session.run({"x": x.numpy(), "lengths": np.array([20, 57, 31])})


def test_a_loop_over_row_lengths_is_refused_with_what_to_write(tmp_path: Path) -> None:
    module, example = longest(lambda lengths: max(int(length) for length in lengths))
    with pytest.raises(PosexportError, match=r"test_row_lengths.py line \d+: .*") as refused:
        posexport.convert(module, tmp_path / "b", example_inputs=example)
    assert not (tmp_path / "b").exists()
    assert "lengths" in str(refused.value)
