"""Images with channels last, rows that depend on their batch, and the memory of attention between all pixels."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posexport.modules.axes.memory import Growth, times_larger, within_memory
from posexport.modules.drawn_calls import DrawnCalls
from posexport.modules.live_module import module_source
from posexport.proof.invariants.check import REORDERED
from tests.small import proven

D, HEADS = 12, 3


class Pixels(nn.Module):
    """All pixels attend to all, channels last; positions of one size are added where there are some."""

    def __init__(self, size: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, HEADS, batch_first=True)
        self.positions = None if size is None else nn.Parameter(torch.randn(*size, D))

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.positions is None else x + self.positions
        pixels = x.flatten(1, 2)
        return self.attention(pixels, pixels, pixels)[0].reshape(x.shape)  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """A row is scaled by the largest value of its batch, as Nystrom attention's first estimate is."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(x + x.mean(1, keepdim=True))
        return y / y.abs().sum(-1).max()


def test_channels_behind_an_image_are_no_side() -> None:
    source = module_source(Pixels().eval(), {"x": torch.randn(2, 10, 8, D)})
    assert source.inputs[0].axes == ["batch_size", "height", "width", D]
    assert source.remarks == []


def test_the_size_of_an_image_with_channels_last_is_named() -> None:
    source = module_source(Pixels((10, 8)).eval(), {"x": torch.randn(2, 10, 8, D)})
    assert "the image size of x stays 10x8x12" in source.remarks[0]


def test_rows_that_depend_on_their_batch_are_a_batch() -> None:
    source = module_source(Scaled().eval(), {"x": torch.randn(2, 9, D)})
    assert source.inputs[0].axes == ["batch_size", "sequence_length", D]
    assert not source.promises.batch_invariant
    assert any("depend on the other rows of its batch" in remark for remark in source.remarks)


class OfChannels(nn.Module):
    """Pixels attend to all by products of three axes, channels first, as in VQGAN: channels are no heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Conv2d(D, D, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = (conv(x).reshape(b, c, h * w) for conv in (self.q, self.k, self.v))
        probs = (torch.bmm(q.permute(0, 2, 1), k) * c**-0.5).softmax(2)
        return x + torch.bmm(v, probs.permute(0, 2, 1)).reshape(b, c, h, w)


def test_channels_of_pixels_are_no_heads(tmp_path: Path) -> None:
    done = proven(OfChannels(), tmp_path / "b", example_inputs={"x": torch.randn(2, D, 6, 5)}, threads=1)
    assert done.manifest is not None
    assert any("ttention" in str(lowering) for lowering in done.manifest.lowerings)


class Placed(nn.Module):
    """Positions along the batch, as flood-forecast's encoder adds them by mistake."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(x.shape[0], dtype=x.dtype)[:, None, None].cos()


def test_rows_that_depend_on_their_place_in_the_batch_keep_it(tmp_path: Path) -> None:
    report = proven(Placed(), tmp_path / "b", example_inputs={"x": torch.randn(2, 9, D)}, lengths=[1, 9]).report
    assert report is not None
    assert [each.verdict for each in report.invariants if each.name == REORDERED] == ["skipped"]


def test_scores_that_outgrow_features_stay_within_memory() -> None:
    def run(sizes: dict[str, int]) -> Tensor:
        pixels = sizes["height"] * sizes["width"]
        return torch.zeros(200_000 * pixels).sum() + torch.zeros(5, pixels, pixels).softmax(-1).sum()

    first = {"batch_size": 1, "height": 4, "width": 5}
    growth = Growth.of(run, first, {**first, "height": 8, "width": 10}, ["height", "width"])
    assert [round(power, 2) for _, power in growth.largest] == [1, 2]
    times = 2000  # of the second size's pixels
    assert growth.bytes_at({"height": 8 * times, "width": 10}) == 12 * 8 * 5 * (80 * times) ** 2


def test_sizes_of_a_proof_stay_within_memory() -> None:
    heads = 64

    def run(sizes: dict[str, int]) -> Tensor:
        pixels = sizes["height"] * sizes["width"]
        return torch.zeros(2 * heads, pixels, pixels)

    first = {"batch_size": 2, "height": 4, "width": 5}
    growth = Growth.of(run, first, {**first, "height": 8, "width": 10}, ["height", "width"])
    assert [round(power, 2) for _, power in growth.largest] == [2, 0]
    chosen = [{"height": 8, "width": 8}, {"height": 56, "width": 48}, {"height": 64, "width": 64}]
    kept, remarks = within_memory(chosen, chosen[-1], growth)
    assert kept == chosen[:1]
    assert "no call with the example's height 64 and width 64" in remarks[0]


def test_maps_without_attention_keep_all_sizes() -> None:
    first = {"height": 4, "width": 5}

    def run(sizes: dict[str, int]) -> Tensor:
        return torch.zeros(8, sizes["height"], sizes["width"])

    growth = Growth.of(run, first, {"height": 8, "width": 10}, ["height", "width"])
    large = {"height": 512, "width": 512}
    assert within_memory([first, large], large, growth) == ([first, large], [])


def test_a_chosen_size_needs_at_most_half_a_gibibyte() -> None:
    first = {"height": 4, "width": 5}

    def run(sizes: dict[str, int]) -> Tensor:
        pixels = sizes["height"] * sizes["width"]
        return torch.zeros(5, pixels, pixels)

    growth = Growth.of(run, first, {"height": 8, "width": 10}, ["height", "width"])
    sizes = [{"height": side, "width": side} for side in (8, 32, 33, 48)]
    assert within_memory(sizes, sizes[0], growth)[0] == sizes[:2]


def test_larger_trial_calls_take_at_most_half_a_gibibyte() -> None:
    def run(sizes: dict[str, int]) -> Tensor:
        kept = [torch.zeros(sizes["batch_size"], 1 << 20) for _ in range(8)]
        return kept[-1]

    assert round(times_larger(run, {"batch_size": 1}), 2) == 4  # 32 MiB, and those of pairs grow by 16
    assert times_larger(run, {"batch_size": 4}) == 2
    assert times_larger(run, {"batch_size": 32}) == 1


class Volume(nn.Module):
    """Scores of all voxels of halved sides, twice: 1.4 GB at the sizes that are traced otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Conv3d(1, D, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        voxels = (y := self.project(x)).flatten(2).mT
        scores = voxels @ voxels.mT
        return (scores.softmax(-1) @ voxels).mT.reshape(y.shape)


def test_a_volume_of_much_memory_is_traced_at_the_example_s_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, run = list[dict[str, int]](), DrawnCalls.run

    def noted(self: DrawnCalls, sizes: dict[str, int], *how: Any) -> dict[str, Tensor]:
        if self._shapes is None:
            tried.append(sizes)
        return run(self, sizes, *how)

    monkeypatch.setattr(DrawnCalls, "run", noted)
    module_source(Volume().eval(), {"x": torch.randn(1, 1, 8, 12, 16)})
    # trial calls are of at most twice these sides
    assert max(sizes["depth"] * sizes["height"] * sizes["width"] for sizes in tried) == 8 * 8 * 12 * 16
