"""Modules that compute sizes in Python: floors of negative numbers, ceilings, limits, loops, kept tables."""

import math
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posexport
from posexport.conversion.export.trace import trace
from posexport.modules.live_module import module_source
from posexport.sources.load_options import Shown
from posexport.sources.source import Source
from tests.small import proven
from tests.tolerances import agree


class Centre(nn.Module):
    """Rows in the middle of a table, as Stable Diffusion 3 crops its positions: the tracer writes ``6 + -n // 2``."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Parameter(torch.randn(12, 8)), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if n > 12:
            raise ValueError(f"{n} is more than 12")
        start = (12 - n) // 2
        result: Tensor = self.norm(x + self.table[start : start + n])
        return result


class Ceiling(nn.Module):
    """Padding to whole frames, by a floor of a negative number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        result: Tensor = self.conv(F.pad(x.mT, (0, -(-n // 4) * 4 - n))).mT
        return result


class Doubled(nn.Module):
    """Ceilings and floors of whole numbers, as denoiser's lengths where samples are doubled."""

    def forward(self, x: Tensor) -> Tensor:
        length = math.ceil(x.shape[1] * 2) - math.floor(x.shape[1])
        return F.pad(x.mT, (0, 2 * x.shape[1] - length)).mT[:, :length].cumsum(1)


class Histogram(nn.Module):
    """How many elements of each row are in each of eight bins: as many ones as there are elements of all rows."""

    def forward(self, x: Tensor) -> Tensor:
        bins = (x.sigmoid() * 8).long() + 8 * torch.arange(x.shape[0])[:, None]
        flat = bins.view(-1)
        counts = torch.zeros(8 * x.shape[0]).scatter_add_(0, flat, torch.ones(len(flat)))
        return counts.view(-1, 8) / x.shape[1]


class Codec(nn.Module):
    """EnCodec's causal convolutions: a frame more where the stride does not divide the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 8, 7, 3), nn.Conv1d(8, 8, 8, 4)

    def padded(self, x: Tensor, kernel: int, stride: int) -> Tensor:
        length, total = x.shape[-1], kernel - stride
        frames = (length - kernel + total) / stride + 1
        whole = (math.ceil(frames) - 1) * stride + (kernel - total)
        return F.pad(x, (total, whole - length))

    def forward(self, samples: Tensor) -> Tensor:
        x = F.elu(self.first(self.padded(samples, 7, 3)))
        result: Tensor = self.second(self.padded(x, 8, 4)).mT
        return result


class Best(nn.Module):
    """At most 7 of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        best = self.score(x)[..., 0].topk(min(7, x.shape[1]), 1).indices
        return x.gather(1, best[..., None].expand(-1, -1, 8))


class Codebooks(nn.Module):
    """Ids [B, K, T], with a table for each of the K codebooks."""

    def __init__(self) -> None:
        super().__init__()
        self.tables, self.norm = nn.ModuleList(nn.Embedding(32, 8) for _ in range(4)), nn.LayerNorm(8)

    def forward(self, codes: Tensor) -> Tensor:
        result: Tensor = self.norm(sum(self.tables[k](codes[:, k]) for k in range(codes.shape[1])))
        return result


class Patches(nn.Module):
    """A fixed number of overlapping patches: only as many samples as make 8 of them are taken."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(8 * 8, 5)

    def forward(self, samples: Tensor) -> Tensor:
        padded = F.pad(samples, (0, 4), mode="replicate")
        result: Tensor = self.project(padded.unfold(1, 8, 4).flatten(1))
        return result


def test_an_axis_of_which_few_sizes_fit_keeps_the_example_s(tmp_path: Path) -> None:
    done = proven(Patches().eval(), tmp_path / "b", example_inputs={"samples": torch.randn(3, 32)})
    assert [spec.axes for spec in done.manifest.inputs] == [["batch_size", 32]]
    assert any("axis 1 of samples has the example's size in the bundle" in remark for remark in done.remarks)


class Window(nn.Module):
    """One result of a window, without its axis, and as many as there are of longer inputs: cebra's encoders."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv1d(5, 3, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        return result.squeeze(-1)


def test_an_axis_of_which_another_size_gives_more_axes_keeps_the_example_s(tmp_path: Path) -> None:
    done = proven(Window().eval(), tmp_path / "b", example_inputs={"x": torch.randn(3, 5, 8)})
    assert [spec.axes for spec in done.manifest.inputs] == [["batch_size", 5, 8]]
    assert [spec.axes for spec in done.manifest.outputs] == [["batch_size", 3]]


class Filled(nn.Module):
    """Angles that are filled up to the longest input so far."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.filled = nn.LayerNorm(8), 0
        self.register_buffer("angles", torch.zeros(128, 8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if n <= self.filled:
            angles = self.angles[:n]
        else:
            angles = torch.arange(n)[:, None] * 10.0 ** -torch.arange(8.0)
            self.angles[:n], self.filled = angles, n
        result: Tensor = self.norm(x) * angles.cos()
        return result


class Kept(nn.Module):
    """Angles of the longest input so far, as an attribute."""

    angles: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.angles = nn.LayerNorm(8), None

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if self.angles is None or self.angles.shape[0] < n:
            self.angles = torch.arange(n)[:, None] * 10.0 ** -torch.arange(8.0)
        result: Tensor = self.norm(x) * self.angles[:n].cos()
        return result


class KeptAsBuffer(Kept):
    """The same, as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        del self.angles
        self.register_buffer("angles", None, persistent=False)


class Skips(nn.Module):
    """A UNet's two levels, which asks for the remainders of both sides in one line."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.out = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Conv2d(7, 3, 1)

    def forward(self, image: Tensor) -> Tensor:
        size = None
        for side in image.shape[-2:]:
            if side % 2:
                size = image.shape[-2:]
        y = self.down(image)
        y = F.interpolate(y, scale_factor=2.0) if size is None else F.interpolate(y, size=size)
        result: Tensor = self.out(torch.cat([image, y], 1))
        return result


class Windows(nn.Module):
    """SwinIR's windows, joined again by a number of rows that Python computes from sizes; -1 fits any number."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        _, height, width, _ = x.shape
        windows = x.unflatten(1, (-1, 4)).unflatten(3, (-1, 4)).transpose(2, 3).flatten(0, 2)
        windows = self.project(windows.flatten(2)).unflatten(2, (4, 8))
        rows = int(windows.shape[0] / (height * width / 4 / 4))
        joined = windows.view(rows, height // 4, width // 4, 4, 4, -1).transpose(2, 3).reshape(rows, height, width, -1)
        return joined.view(x.shape)


class GhostNorm(nn.Module):
    """TabNet's batch norm, of 128 rows at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        parts = x.chunk(int(np.ceil(x.shape[0] / 128)), 0)
        return self.out(torch.cat([self.norm(part) for part in parts], dim=0))


@pytest.mark.all
@pytest.mark.parametrize("module", [Centre, Ceiling, Doubled, Best])
def test_every_length_is_right(tmp_path: Path, module: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = module().eval()
    proven(model, tmp_path / "bundle", example_inputs={"x": torch.randn(2, 9, 8)})
    session = posexport.load(tmp_path / "bundle")
    for length in range(1, 13):
        x = torch.randn(2, length, 8)
        with torch.no_grad():
            agree(session.run({"x": x.numpy()})["output"], model(x), "model in float32", "float32")


@pytest.mark.all
def test_a_codec_is_traced_with_several_frames(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Codec().eval()
    proven(model, tmp_path / "bundle", example_inputs={"samples": torch.randn(2, 1, 120)})
    session = posexport.load(tmp_path / "bundle")
    for samples in (1, 11, 12, 13, 47, 121):
        x = torch.randn(2, 1, samples)
        with torch.no_grad():
            agree(session.run({"samples": x.numpy()})["output"], model(x), "model in float32", "float32")


@pytest.mark.all
def test_an_axis_that_is_unrolled_keeps_its_size(tmp_path: Path) -> None:
    codes = torch.randint(32, (2, 4, 9))
    result = proven(Codebooks(), tmp_path / "bundle", example_inputs={"codes": codes})
    assert result.manifest is not None
    assert result.manifest.inputs[0].axes == ["batch_size", 4, "sequence_length"]
    assert any(remark.startswith("axis 1 of codes has the example's size in the bundle") for remark in result.remarks)
    # no remark of the graph that was given up
    assert not any("at most 4 tokens" in remark for remark in result.remarks)


@pytest.mark.all
def test_a_bundle_with_such_an_axis_is_compared_again(tmp_path: Path) -> None:
    model, example = Codebooks().eval(), {"codes": torch.randint(32, (2, 4, 9))}
    proven(model, tmp_path / "bundle", example_inputs=example)
    assert posexport.verify(tmp_path / "bundle", against=model, example_inputs=example).passed


@pytest.mark.all
def test_a_table_of_an_earlier_call_is_traced_beyond_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Filled().eval()
    model(torch.randn(1, 30, 8))
    result = proven(model, tmp_path / "bundle", example_inputs={"x": torch.randn(2, 9, 8)})
    assert result.manifest is not None
    assert result.manifest.limits.max_length == 128
    assert any("traced at sequence_length 32" in remark for remark in result.remarks)
    assert model.filled == 30
    x = torch.randn(2, 100, 8)
    with torch.no_grad():
        got = posexport.load(tmp_path / "bundle").run({"x": x.numpy()})["output"]
        agree(got, Filled().eval().requires_grad_(False)(x), "model in float32", "float32")


@pytest.mark.all
def test_remainders_of_both_sides_become_steps(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Skips().eval()
    result = proven(model, tmp_path / "bundle", example_inputs={"image": torch.randn(2, 3, 16, 12)})
    assert result.manifest is not None
    assert result.manifest.limits.size_steps == {"height": 2, "width": 2}
    image = torch.randn(1, 3, 10, 22)
    with torch.no_grad():
        got = posexport.load(tmp_path / "bundle").run({"image": np.asarray(image)})["output"]
        agree(got, model(image), "model in float32", "float32")


def test_the_axes_of_outputs_are_compared_at_the_least_sizes() -> None:
    source = module_source(Best().eval(), {"x": torch.randn(2, 12, 8)})
    assert source.outputs[0].axes == ["batch_size", "output_axis_1", 8]


def _trace_is_right(source: Source, model: nn.Module, *shapes: tuple[int, ...]) -> None:
    session = onnxruntime.InferenceSession(ir.to_proto(trace(source, 20)).SerializeToString())
    for shape in shapes:
        x = torch.randn(shape)
        with torch.no_grad():
            agree(session.run(None, {"x": x.numpy()})[0], model(x), "model in float32", "float32")


def test_a_number_of_rows_from_several_sizes_follows_the_batch() -> None:
    torch.manual_seed(0)
    model = Windows().eval()
    source = module_source(model, {"x": torch.randn(2, 8, 12, 8)})
    _trace_is_right(source, model, (1, 8, 8, 8), (3, 12, 8, 8))


def test_chunks_of_a_computed_number_of_rows_follow_the_batch() -> None:
    torch.manual_seed(0)
    model = GhostNorm().eval()
    _trace_is_right(module_source(model, {"x": torch.randn(3, 8)}), model, (1, 8), (128, 8), (300, 8))


@pytest.mark.parametrize("kind", [Kept, KeptAsBuffer])
def test_a_table_of_a_longer_call_is_no_limit(kind: type[Kept]) -> None:
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(2, 40, 8)
    model(x)
    source = module_source(model, {"x": x[:, :9]})
    assert source.limits.max_length is None
    assert model.angles is not None
    assert model.angles.shape[0] == 40
    _trace_is_right(source, kind().eval(), (1, 5, 8), (2, 70, 8))


def test_a_table_that_cannot_be_traced_is_a_limit() -> None:
    torch.manual_seed(0)
    model, x = Kept().eval(), torch.randn(2, 40, 8)
    model(x)
    assert module_source(model, {"x": x[:, :9]}, shown=Shown(keeps_tables=True)).limits.max_length == 40


def test_the_length_of_several_axes_in_one(tmp_path: Path) -> None:
    proven(Histogram(), tmp_path / "b", example_inputs=(torch.randn(2, 13),))
