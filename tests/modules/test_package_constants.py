"""Modules whose buffers decide what they compute, and other forms of installed packages' modules."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posexport
from posexport.errors import PosexportError
from posexport.modules.live_module import module_source
from tests.small import proven
from tests.tolerances import agree

D = 6


class Chain(nn.Module):
    """Rotations along a tree of joints, whose parents are a buffer, as smplx'."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("parents", torch.tensor([-1, 0, 0, 1]))
        self.register_buffer("rounds", torch.tensor(2))

    def forward(self, x: Tensor) -> Tensor:
        joints = [x[:, 0]]
        for number in range(1, len(self.parents)):
            joints.append(joints[self.parents[number]] * 0.5 + x[:, number])
        out = torch.stack(joints, 1)
        for _ in range(int(self.rounds)):
            out = out.tanh()
        return out


class Columns(nn.Module):
    """A table of numbers and ids; which is which is a tensor that is no buffer, as pytabkit's."""

    def __init__(self) -> None:
        super().__init__()
        self.is_number = torch.tensor([True, False, True])
        self.ids = nn.Embedding(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        scaled = x.clone()
        scaled[:, self.is_number] = 2 * x[:, self.is_number]
        ids = x[:, ~self.is_number].long()
        return scaled[:, torch.nonzero(self.is_number)[:, 0]] + self.ids(ids)[:, 0]


class Rounded(nn.Module):
    """A weight that is rounded while its layer is called, and set back, as compressed-tensors'."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.linear.weight
        kept = weight.data
        weight.data = (4 * kept).round() / 4
        rounded = self.linear(x) * weight.data.sum() * weight.shape[0]
        weight.data = kept
        return rounded + self.linear(x)


class Counted(nn.Module):
    """A buffer that the call itself changes: what it was is not what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.tensor([0, 1]))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.seen.clone()
        seen[0] += 1
        return x * seen + (seen > 0).to(x.dtype)


class Sliced(nn.Module):
    """Rows of a small table, by the number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, D)
        self.register_buffer("rows", torch.randn(190, D))

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.embed(ids) * self.rows[: ids.shape[1]]
        return out


class Squeezed(nn.Module):
    """Squeezes of axes that are longer, as of heads and classes, beside one of 1."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(5, D))

    def forward(self, x: Tensor) -> Tensor:
        found = (self.queries @ x.mT).softmax(-1) @ x
        return found.squeeze(1) + found[..., None].squeeze((1, 3)) + found[:, None].squeeze(dim=1)


class Resampled(nn.Module):
    """A filter for any number of channels, as alias-free-torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filter", torch.randn(1, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        filters = self.filter.expand(x.shape[1], -1, -1)
        up = F.conv_transpose1d(x, filters, stride=2, groups=x.shape[1])
        return F.conv1d(up.tanh(), filters, None, 2, 0, 1, x.shape[1])


class Bands(nn.Module):
    """Complex masks of bands that overlap, summed by frequency, as a separation of sources; ``in_place``."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("at", torch.tensor([0, 1, 1, 2]))

    def forward(self, x: Tensor) -> Tensor:
        masks = x[..., 0] + x[..., 1] * 1.0j
        sums, at = torch.zeros_like(masks)[:, :3], self.at[:, None].expand_as(masks)
        if self.in_place:
            sums.scatter_add_(1, at, masks)
        else:
            sums = sums.scatter_add(1, at, masks)
        return torch.view_as_real(sums)


class Loss(nn.Module):
    """A ratio of spectra: it changes neither with the sign nor where both inputs are halved, as auraloss'."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x.square() - y.square()).norm() / y.square().norm()


class Bonds(nn.Module):
    """Messages of bonds, each without its reverse's, as chemprop's."""

    def forward(self, bonds: Tensor, reverse: Tensor) -> Tensor:
        return bonds - 0.5 * bonds[reverse]


class Framed(nn.Module):
    """A network over frames in steps, of which a sound gives one more than it is long, as a separation of sources."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        frames = F.pad(self.mix(x), (8, 8)).unfold(-1, 16, 8)
        half = F.avg_pool2d(frames, (4, 1))
        return frames + half.repeat_interleave(4, 2)


@pytest.mark.parametrize(
    ("module", "example", "other"),
    [
        (Chain(), {"x": (2, 4, D)}, {"x": (5, 4, D)}),
        (Counted(), {"x": (3, 2)}, {"x": (5, 2)}),
        (Squeezed(), {"x": (3, 7, D)}, {"x": (1, 9, D)}),
        (Resampled(), {"x": (2, 8, 50)}, {"x": (3, 5, 50)}),
        (Bands(in_place=True), {"x": (3, 4, 11, 2)}, {"x": (2, 4, 9, 2)}),
        (Bands(in_place=False), {"x": (3, 4, 11, 2)}, {"x": (2, 4, 9, 2)}),
        (Loss(), {"x": (3, D), "y": (3, D)}, {"x": (5, D), "y": (5, D)}),
        (Framed(), {"x": (2, 3, 120)}, {"x": (1, 3, 120)}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_the_graph_computes_what_the_module_does(
    tmp_path: Path, module: nn.Module, example: dict[str, tuple[int, ...]], other: dict[str, tuple[int, ...]]
) -> None:
    proven(module, tmp_path / "b", example_inputs={name: torch.randn(shape) for name, shape in example.items()})
    inputs = {name: torch.randn(shape) for name, shape in other.items()}
    _agrees(tmp_path / "b", module, inputs)


def test_columns_by_a_mask_of_the_module(tmp_path: Path) -> None:
    module, ids = Columns(), torch.tensor([[4.0], [0.0], [3.0], [1.0]])
    proven(module, tmp_path / "b", example_inputs={"x": torch.cat([torch.randn(4, 1), ids, torch.randn(4, 1)], 1)})
    _agrees(tmp_path / "b", module, {"x": torch.cat([torch.randn(3, 1), ids[:3], torch.randn(3, 1)], 1)})


def test_a_table_that_is_sliced_by_a_size_is_no_constant(tmp_path: Path) -> None:
    module = Sliced()
    proven(module, tmp_path / "b", example_inputs={"ids": torch.arange(14).view(2, 7) % 11})
    _agrees(tmp_path / "b", module, {"ids": torch.arange(190).view(1, 190) % 11})


def test_ids_of_an_axis_are_below_its_size(tmp_path: Path) -> None:
    reverse = torch.arange(20).view(-1, 2).flip(1).flatten()
    done = proven(Bonds(), tmp_path / "b", example_inputs={"bonds": torch.randn(20, D), "reverse": reverse})
    assert done.manifest is not None
    assert done.manifest.limits.min_length == 1
    assert [spec.rows_of for spec in done.manifest.inputs if spec.role == "rows"] == ["sequence_length"]
    _agrees(tmp_path / "b", Bonds(), {"bonds": torch.randn(24, D), "reverse": torch.arange(24) % 20})


def test_a_weight_that_a_call_sets_and_sets_back(tmp_path: Path) -> None:
    module = Rounded()
    proven(module, tmp_path / "b", example_inputs={"x": torch.randn(2, 7, D)})
    _agrees(tmp_path / "b", module, {"x": torch.randn(3, 5, D)})


def test_a_number_of_frames_that_no_step_describes_is_fixed() -> None:
    source = module_source(Framed(), {"x": torch.randn(2, 3, 120)})
    assert source.inputs[0].axes[-1] == 120
    assert any("axis 2 of x has the example's size in the bundle, 120" in remark for remark in source.remarks)


def test_a_weight_of_another_kind_of_tensor_is_named(tmp_path: Path) -> None:
    class Stored(Tensor):
        """Integers and a scale, as optimum-quanto's."""

        def __deepcopy__(self, memo: dict[int, object]) -> Tensor:
            raise RuntimeError("no copies")

    module, weight = nn.Linear(D, D), torch.randn(D, D).as_subclass(Stored)
    weight.scale = torch.ones(D)  # type: ignore[attr-defined]
    del module.weight
    module.weight = weight  # type: ignore[assignment]
    with pytest.raises(PosexportError, match=r"a weight is a Stored, .* precision="):
        posexport.convert(module, tmp_path / "b", example_inputs={"input": torch.randn(2, D)})


def _agrees(path: Path, module: nn.Module, inputs: dict[str, Tensor]) -> None:
    got = posexport.load(path).run({name: tensor.numpy() for name, tensor in inputs.items()})["output"]
    with torch.no_grad():
        want = module.eval()(**inputs)
    agree(got, want.reshape(got.shape), "model in float32", torch.float32)
