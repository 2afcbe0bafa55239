"""Modules of speech, signals, detection and recommenders, in the forms in which packages write them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posexport
from posexport.errors import PosexportError
from posexport.modules.live_module import module_source
from tests.modules.row_masks import mask_of, padding_of
from tests.tolerances import agree

D = 6


class OfLengths(nn.Module):
    """Attention by a mask of a helper's; ``listed``: the helper makes a list of the lengths."""

    def __init__(self, *, listed: bool) -> None:
        super().__init__()
        self.linear, self.listed = nn.Linear(D, D), listed

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        seen = ~padding_of(lengths) if self.listed else mask_of(lengths, x.shape[1])
        y = self.linear(x)
        scores = (y @ y.mT).masked_fill(~seen[:, None], -1e4)
        return torch.where(seen[..., None], scores.softmax(-1) @ y, 0.0)


class Heads(nn.Module):
    """Attention with heads along the batch, as ATCNet's."""

    def forward(self, x: Tensor) -> Tensor:
        heads = torch.cat(x.split(2, -1), 0)
        out = (heads @ heads.mT).softmax(-1) @ heads
        return torch.cat(out.split(x.shape[0], 0), -1)


class Spectrum(nn.Module):
    """A filter of a sound's spectrum, and the sound again, as of a separation of sources."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(7, 1))

    def forward(self, x: Tensor) -> Tensor:
        window = torch.hann_window(16, dtype=x.dtype)
        spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
        spectrum = F.pad(F.pad(spectrum[:, 1:8] * self.gain, (0, 0, 1, 0)), (0, 0, 0, 1), value=0.0)
        return torch.istft(spectrum, 16, 4, window=window)


class Similarity(nn.Module):
    """A measure of images from 0 to 1, as piq's."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if bool((x < 0).any() | (x > 1).any()):
            raise ValueError("pixels are from 0 to 1")
        kernel = torch.ones(x.shape[1], 1, 3, 3, dtype=x.dtype) / 9
        means = [F.conv2d(image, weight=kernel, groups=x.shape[1]) for image in (x, y)]
        return (means[0] - means[1]).square().mean((1, 2, 3))


class Ratings(nn.Module):
    """A table of an item, a user and two real numbers, as deepctr's."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.users, self.linear = nn.Embedding(30, D), nn.Embedding(50, D), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        item, user = self.items(x[:, 0].long()), self.users(x[:, 1].long())
        return (item * user).sum(-1) + self.linear(x[:, 2:])[:, 0]


class Boxes(nn.Module):
    """Queries with points or boxes, and features of a grid whose sides are a tensor, as RF-DETR's decoder."""

    def forward(self, queries: Tensor, grid: Tensor, boxes: Tensor) -> Tensor:
        if boxes.shape[-1] not in (2, 4):
            raise ValueError("points or boxes")
        ((height, width),) = torch.tensor([[2, 3]])
        seen = grid.view(grid.shape[0], int(height), int(width), D).mean((1, 2))
        sides = boxes[..., 2:].mean(-1, keepdim=True) if boxes.shape[-1] == 4 else 1.0
        return (queries + seen[:, None]) * sides + boxes[..., :1]


def converted(module: nn.Module, path: Path, example: dict[str, Tensor]) -> Any:
    result = posexport.convert(module.eval(), path, example_inputs=example)
    assert result.good, result.to_text()
    return result


def agrees(path: Path, module: nn.Module, inputs: dict[str, Tensor]) -> None:
    got = posexport.load(path).run({name: tensor.numpy() for name, tensor in inputs.items()})["output"]
    with torch.no_grad():
        agree(got, module(**inputs), "model in float32", torch.float32)


@pytest.mark.parametrize("listed", [False, True], ids=["by-size", "by-list"])
def test_masks_of_row_lengths(tmp_path: Path, listed: bool) -> None:
    module = OfLengths(listed=listed)
    converted(module, tmp_path / "b", {"x": torch.randn(2, 13, D), "lengths": torch.tensor([13, 8])})
    agrees(tmp_path / "b", module, {"x": torch.randn(5, 9, D), "lengths": torch.tensor([3, 9, 1, 7, 4])})


def test_heads_along_the_batch(tmp_path: Path) -> None:
    module = Heads()
    converted(module, tmp_path / "b", {"x": torch.randn(2, 13, D)})
    agrees(tmp_path / "b", module, {"x": torch.randn(5, 9, D)})


def test_a_sound_from_its_spectrum(tmp_path: Path) -> None:
    module = Spectrum()
    converted(module, tmp_path / "b", {"x": torch.randn(2, 160)})
    agrees(tmp_path / "b", module, {"x": torch.randn(3, 93)})


def test_values_with_a_largest_one(tmp_path: Path) -> None:
    module = Similarity()
    example = {"x": torch.rand(2, 3, 24, 28), "y": torch.rand(2, 3, 24, 28)}
    example["x"][0, 0, 0, 0] = 1.0
    result = converted(module, tmp_path / "b", example)
    most = [spec.at_most for spec in result.manifest.inputs]
    assert most[0] == 1.0
    assert not isinstance(most[1], float)  # nothing looks at y's
    assert any("drawn from 0 to 1," in remark and "larger" in remark for remark in result.remarks)
    agrees(tmp_path / "b", module, {"x": torch.rand(3, 3, 11, 17), "y": torch.rand(3, 3, 11, 17)})


def test_ids_in_a_table_of_real_numbers(tmp_path: Path) -> None:
    module = Ratings()
    ids = torch.tensor([[4.0, 49.0], [29.0, 3.0], [7.0, 0.0]])
    result = converted(module, tmp_path / "b", {"x": torch.cat([ids, torch.randn(3, 2)], -1)})
    assert result.manifest.inputs[0].column_sizes == [30, 50, 0, 0]
    agrees(tmp_path / "b", module, {"x": torch.cat([ids[:2], torch.randn(2, 2)], -1)})


def test_tables_of_real_numbers_alone_have_no_ids() -> None:
    source = module_source(nn.Linear(3, 2), {"input": torch.tensor([[1.0, 2.0, 0.5], [3.0, 4.0, 1.5]])})
    assert source.inputs[0].column_sizes == []


def test_boxes_and_points_are_no_axis(tmp_path: Path) -> None:
    module = Boxes()
    result = converted(
        module,
        tmp_path / "b",
        {"queries": torch.randn(2, 11, D), "grid": torch.randn(2, 6, D), "boxes": torch.rand(2, 11, 4)},
    )
    assert result.manifest.inputs[2].axes[-1] == 4
    agrees(
        tmp_path / "b",
        module,
        {"queries": torch.randn(3, 5, D), "grid": torch.randn(3, 6, D), "boxes": torch.rand(3, 5, 4)},
    )


class Phases(nn.Module):
    """A complex parameter, and a state with an entry that is no tensor, as of neural operators."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.polar(torch.ones(D), torch.arange(D) * 0.3))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {**super().state_dict(*args, **kwargs), "_metadata": {"layers": 1}}

    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(x) * self.phase).flatten(-2)


def test_complex_parameters(tmp_path: Path) -> None:
    module = Phases()
    converted(module, tmp_path / "b", {"x": torch.randn(2, 13, D, 2)})
    agrees(tmp_path / "b", module, {"x": torch.randn(3, 9, D, 2)})


def test_lengths_in_a_list_without_a_whole_row_are_refused(tmp_path: Path) -> None:
    class Shortest(nn.Module):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return x[:, : min(lengths.tolist())]

    example = {"x": torch.randn(2, 13, D), "lengths": torch.tensor([13, 8])}
    with pytest.raises(PosexportError):
        posexport.convert(Shortest(), tmp_path / "b", example_inputs=example)
    assert not (tmp_path / "b").exists()
