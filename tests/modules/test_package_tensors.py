"""What installed packages do with tensors: subclasses, arrays of NumPy, transforms, counts, strides that round."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posexport
from posexport.conversion.export.messages import meaning
from posexport.errors import PosexportError
from posexport.modules.live_module import module_source
from posexport.modules.value_branches import ways_that_fit
from posexport.proof import choose
from tests.small import proven
from tests.tolerances import agree

D = 6


class Picture(Tensor):
    """A subclass that changes nothing, as fastai's of images."""


class Cast(nn.Module):
    """fastai's last layers, and attributes of other libraries with names that posexport's definitions have: Keras."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.inputs = nn.Linear(D, D), ["a symbolic tensor"]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).as_subclass(Picture).tanh()  # type: ignore[no-any-return]


class Called(nn.Module):
    """No forward: the class has ``__call__``, as edge detectors of ControlNet."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)

    def __call__(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh()  # type: ignore[no-any-return]


class Resized(nn.Module):
    """The first values, a rounded share of them."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(-1)[..., : round(0.7 * x.shape[-1])]


class Transform(nn.Module):
    """A spectrum of as many points as samples, changed and transformed back."""

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)
        weights = torch.arange(spectrum.shape[-1]).float().cos()
        return torch.fft.irfft(spectrum * weights, n=x.shape[-1])


class Interleaved(nn.Module):
    """What is computed of a spectrum in the even places and, reversed, in the odd ones, as of cosine transforms."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.mT.tanh()
        size = x.shape[-1]
        rows = x.reshape(-1, size)
        spectrum = torch.stack([rows, rows * 0.5], 2)
        values = torch.fft.irfft(torch.view_as_complex(spectrum), n=spectrum.shape[1])
        y = values.new_zeros(values.shape)
        y[:, ::2] += values[:, : size - size // 2]
        y[:, 1::2] += values.flip([1])[:, : size // 2]
        return y.view(x.shape)


class Hourglass(nn.Module):
    """Features of a fourth of the size, added again: the strides before round, so that a pixel more or less fits."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(1, 4, 7, 2, 3), nn.Conv2d(4, 4, 1)

    def forward(self, image: Tensor) -> Tensor:
        x = F.avg_pool2d(self.first(image), 2)
        small = self.inner(F.avg_pool2d(F.avg_pool2d(x, 2), 2))
        return x + F.interpolate(small, scale_factor=4.0)


class Normed(nn.Module):
    """A norm of groups of one channel, which takes no single pixel of a single row."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(1, 4, 3, 2, 1), nn.GroupNorm(4, 4)

    def forward(self, image: Tensor) -> Tensor:
        return F.interpolate(self.norm(self.down(image)), scale_factor=2.0)


class Points(nn.Module):
    """Reference points of two numbers, or boxes of four."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, 2)

    def forward(self, x: Tensor, points: Tensor) -> Tensor:
        if points.shape[-1] not in (2, 4):
            raise ValueError("two numbers or four")
        return self.linear(x) + points[..., :2] * points[..., -2:]  # type: ignore[no-any-return]


class Counted(nn.Module):
    """Rows without any key are counted, as in CosyVoice's masks; ``lengths``: a count that is no zero."""

    def __init__(self, *, lengths: bool = False) -> None:
        super().__init__()
        self.linear, self.lengths = nn.Linear(D, D), lengths

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        kept = mask > 0
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() & (kept[:, None] | True)
        if (causal.sum(-1) == 0).sum().item() != 0:
            causal = causal | True
        if self.lengths and kept.sum(-1).max().item() > 3:
            x = x + 1
        scores = (x @ x.mT).masked_fill(~(causal & kept[:, None]), -1e4)
        return self.linear(scores.softmax(-1) @ x)  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """Attention behind a scale that hides it, as before training: which value masks shows in NaN alone."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1e-6))

    def forward(self, x: Tensor, text: Tensor, dropped: Tensor) -> Tensor:
        scores = (x @ text.mT).masked_fill(dropped[:, None], -torch.inf)
        return x + self.scale * (scores.softmax(-1) @ text)


def converted(module: nn.Module, folder: Path, example: dict[str, Tensor], other: dict[str, Tensor]) -> Any:
    """The conversion, whose file gives what the module gives at ``other`` inputs."""
    result = proven(module, folder, example_inputs=example)
    (got,) = posexport.load(folder).run({name: tensor.numpy() for name, tensor in other.items()}).values()
    with torch.no_grad():
        want = module(**other)
    agree(got, want.as_subclass(Tensor), "model in float32", torch.float32)
    return result


def test_a_trace_has_no_subclasses() -> None:
    source = module_source(Cast(), {"x": torch.randn(2, D)})
    batch = {"x": {0: torch.export.Dim("batch")}}
    program = torch.export.export(source.module, (), {"x": torch.randn(2, D)}, dynamic_shapes=batch, strict=False)
    assert "tanh" in str(program.graph)


@pytest.mark.parametrize("module", [Cast, Called])
def test_tensors_of_a_subclass_and_modules_without_forward(tmp_path: Path, module: type[nn.Module]) -> None:
    converted(module(), tmp_path / "b", {"x": torch.randn(2, D)}, {"x": torch.randn(5, D)})


def test_a_module_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(PosexportError, match="has no forward"):
        module_source(nn.Module(), {"x": torch.randn(2, D)})


def test_transforms_of_any_length(tmp_path: Path) -> None:
    converted(Transform(), tmp_path / "b", {"x": torch.randn(2, 56)}, {"x": torch.randn(3, 97)})


@pytest.mark.parametrize("size", [16, 97])
def test_halves_of_a_size_make_no_odd_sizes_of_all(tmp_path: Path, size: int) -> None:
    converted(Interleaved(), tmp_path / "b", {"x": torch.randn(2, 16, 24)}, {"x": torch.randn(3, size, 24)})


def test_numpy_s_arrays_of_a_size_are_a_sentence() -> None:
    with pytest.raises(AttributeError) as error:
        np.fmod(np.array([0.5], dtype=object), 2)  # what NumPy makes of symbolic sizes
    assert "makes a constant of a size" in str(meaning(str(error.value), "model.py line 3"))
    assert meaning("'float' object has no attribute 'shape'", "model.py line 3") is None


def test_a_rounded_size(tmp_path: Path) -> None:
    converted(Resized(), tmp_path / "b", {"x": torch.randn(2, 56)}, {"x": torch.randn(3, 91)})


def test_a_stride_that_rounds_hides_no_step(tmp_path: Path) -> None:
    result = converted(
        Hourglass(), tmp_path / "b", {"image": torch.randn(2, 1, 32, 48)}, {"image": torch.randn(1, 1, 64, 16)}
    )
    assert result.manifest.limits.size_steps == {"height": 16, "width": 16}


def test_the_least_image_is_accepted_alone() -> None:
    source = module_source(Normed().eval(), {"image": torch.randn(2, 1, 16, 24)})
    assert all(min(sizes.values()) > 2 for sizes in source.limits.proof_sizes)


def test_points_or_boxes_are_no_axis() -> None:
    source = module_source(Points(), {"x": torch.randn(2, 11, D), "points": torch.rand(2, 11, 2)})
    assert [spec.axes[-1] for spec in source.inputs] == [D, 2]


def test_a_count_of_zero_decides(tmp_path: Path) -> None:
    example = {"x": torch.randn(2, 9, D), "mask": torch.tensor([[1] * 9, [1] * 6 + [0] * 3])}
    other = {"x": torch.randn(2, 5, D), "mask": torch.ones(2, 5, dtype=torch.int64)}
    result = converted(Counted(), tmp_path / "b", example, other)
    (remark,) = [remark for remark in result.remarks if "branches by the values" in remark]
    assert "sum().item() != 0" in remark


def test_another_count_may_be_a_size() -> None:
    module = Counted(lengths=True)
    source = module_source(module, {"x": torch.randn(2, 9, D), "mask": torch.ones(2, 9, dtype=torch.int64)})
    ways = ways_that_fit(module, source.inputs, {})
    assert [way for line, way in ways.items() if "item() > 3" in line] == []


def test_lengths_beyond_the_default_ones_take_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = {"input": torch.randn(2, 9, D)}
    longest = []
    for most in (choose.FURTHER_OF_MODULES, 1):
        monkeypatch.setattr(choose, "FURTHER_OF_MODULES", most)
        report = proven(nn.Linear(D, D), tmp_path / str(most), example_inputs=example).report
        assert report is not None
        longest.append(max(point.length for point in report.points))
    assert longest[1] < 1024 <= longest[0]


def test_attention_to_nothing_shows_the_value_of_padding() -> None:
    example = {"x": torch.randn(2, 7, D), "text": torch.randn(2, 9, D), "dropped": torch.zeros(2, 9, dtype=torch.bool)}
    source = module_source(Scaled(), example)
    assert [spec.padding for spec in source.inputs if spec.role == "mask"] == [1]
