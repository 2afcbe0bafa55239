"""Every file of `sources.torch_fixes` is still needed: a test here fails once PyTorch is mended, and the file goes.

Each is the smallest module that PyTorch alone gets wrong, or refuses; most have a second half with the fix.
"""

import contextlib
import importlib.util
import inspect
import sys
import warnings
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import posexport
from posexport.conversion.export import trace
from posexport.conversion.export.trace import translations
from posexport.errors import PosexportError
from posexport.sources.torch_fixes import (
    adaptive_pool,
    arange,
    byte_masks,
    clamps,
    complex_views,
    distances,
    grouped,
    index_put,
    max_pool,
    shapes,
    shared_buffers,
    splits,
    squeezes,
    stacks,
    unit_scale,
)
from posexport.sources.torch_fixes.as_exported import as_exported
from posexport.sources.torch_fixes.attention_flags import with_decided_flags
from posexport.sources.torch_fixes.causal_mask import without_mask_detection
from posexport.sources.torch_fixes.compiled import without_compiling
from posexport.sources.torch_fixes.constant_ranges import with_constant_ranges
from posexport.sources.torch_fixes.default_dtype import computing_in
from posexport.sources.torch_fixes.exporter_output import without_exporter_output
from posexport.sources.torch_fixes.fast_path import without_fast_path
from posexport.sources.torch_fixes.helper_lines import with_helper_lines
from posexport.sources.torch_fixes.known_values import KnownValues, small_buffers
from posexport.sources.torch_fixes.module_precision import in_precision
from posexport.sources.torch_fixes.module_state import with_state_kept
from posexport.sources.torch_fixes.shape_solver import with_unsolved_sizes
from posexport.sources.torch_fixes.size_uses import recording_size_uses
from posexport.sources.torch_fixes.vmap_index import indexed
from posexport.sources.torch_fixes.whole_row import WholeRow
from tests.small import proven
from tests.tolerances import agree

X = torch.randn(3, 13, generator=torch.Generator().manual_seed(0))


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def export(function: Any, x: Tensor = X) -> torch.export.ExportedProgram:
    """A trace with a dynamic batch and a dynamic length."""
    return torch.export.export(Calls(function), (x,), dynamic_shapes=({0: Dim("B"), 1: Dim("T")},))


# PyTorch warns of them once in a process
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_fast_path() -> None:
    layer = nn.TransformerEncoderLayer(12, 2, 20, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=True).eval()
    padded = torch.zeros(2, 7, dtype=torch.bool)
    padded[:, 5:] = True
    x = torch.randn(2, 7, 12)
    with torch.no_grad():
        assert not encoder(x, src_key_padding_mask=padded)[:, 5:].any()
        with without_fast_path():
            assert encoder(x, src_key_padding_mask=padded)[:, 5:].all()


def test_causal_mask() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 2, 20, batch_first=True), 1).eval()

    def masked(x: Tensor) -> Any:
        return encoder(x, mask=torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1))

    x = torch.randn(3, 7, 12)
    with torch.no_grad(), without_fast_path():
        with pytest.raises(Exception, match="data-dependent"):
            export(masked, x)
        with without_mask_detection():
            export(masked, x)


def test_attention_flags() -> None:
    def causal(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=x.shape[1] > 1)

    with pytest.raises(TypeError, match=r"is_causal.*SymBool"):
        export(causal, torch.randn(3, 7, 12))
    with with_decided_flags():
        export(causal, torch.randn(3, 7, 12))


def test_a_module_may_import_attention_between_two_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    late: Any = ModuleType("late")
    late.__file__ = str(tmp_path / "late.py")
    (tmp_path / "late.py").touch()
    monkeypatch.setitem(sys.modules, "late", late)
    with with_decided_flags():
        pass
    attention = late.attention = F.scaled_dot_product_attention
    with with_decided_flags():
        assert late.attention is not attention
    assert late.attention is attention


def test_an_equality_of_a_value_is_none_of_a_size() -> None:
    """As of what snac divides by: the trace failed, and another strategy knows no mode."""

    def checked(x: Tensor) -> Tensor:
        number: Any = x[0, 0].long().item()
        torch._check(number == 3)
        return x * number

    with recording_size_uses() as uses:
        export(checked)
    assert not uses.equalities


class Lazy(ModuleType):
    """A package's optional part."""

    def __getattr__(self, name: str) -> Any:
        raise ImportError("this part needs a package that is not installed")


def test_lazy_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "a_lazy_part", Lazy("a_lazy_part"))
    frame = eval(compile("sys._getframe()", str(tmp_path / "line.py"), "eval"))
    with pytest.raises(ImportError, match="not installed"):
        inspect.getmodule(frame)
    with as_exported():
        assert inspect.getmodule(frame) is None


def test_a_module_that_loads_late_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("raise ImportError")
    spec = importlib.util.spec_from_file_location("late", tmp_path / "late.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    late = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "late", late)
    spec.loader.exec_module(late)
    with with_decided_flags():
        pass
    with pytest.raises(ImportError):
        late.anything  # noqa: B018 (loads it)


class Frames(nn.Module):
    """Two convolutions of stride 2, and a mask that is cut as they cut: sizes that are computed in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(5, 6, 3, 2), nn.Conv1d(6, 6, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.arange(x.shape[1]) >= 0
        return self.second(self.first(x.mT)).mT.masked_fill(~kept[2::2][2::2, None], 0.0)


def test_shape_solver_solve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = {"x": torch.randn(2, 67, 5)}
    monkeypatch.setattr(trace, "with_unsolved_sizes", contextlib.nullcontext)
    with pytest.raises(PosexportError, match="cannot be solved using solve_univariate_inequality"):
        posexport.convert(Frames().eval(), tmp_path / "b", example_inputs=example, verify=False)
    monkeypatch.undo()
    posexport.convert(Frames().eval(), tmp_path / "b", example_inputs=example, verify=False)


def test_shape_solver_prettify_results() -> None:
    def filled(x: Tensor) -> Tensor:
        rows = F.pad(x, (0, -x.shape[1] % 8)).unflatten(1, (-1, 8))
        return rows.flatten(1, 2)[:, : x.shape[1]] + x

    with pytest.raises(AssertionError) as error:
        export(filled)
    assert any(frame.name == "prettify_results" for frame in error.traceback)
    with with_unsolved_sizes(), pytest.raises(Exception, match="Constraints violated"):
        export(filled)


def test_size_uses() -> None:
    """The error of PyTorch names no line; it may name one with another word than the file's name."""

    def constant(x: Tensor) -> Tensor:
        return x + torch.arange(int(x.shape[1]))

    with recording_size_uses() as uses, pytest.raises(Exception, match="constant") as error:
        export(constant)
    assert "test_still_needed" not in str(error.value)
    assert "int(x.shape[1])" in uses.line_of_constant(13)

    def branching(x: Tensor) -> Tensor:
        return x if x.shape[1] > 4 else 2 * x

    with without_exporter_output(), recording_size_uses() as uses:
        _onnx(branching)  # without an error
    assert list(uses.branches.values()) == [True]


def test_default_dtype() -> None:
    linear = nn.Linear(4, 4).double()
    x = torch.ones(2, 4, dtype=torch.float64)
    assert torch.zeros(3, dtype=torch.float32).dtype == torch.float32
    with pytest.raises(RuntimeError, match="same dtype"):
        linear(x.float())
    with computing_in(torch.float64):
        assert linear(x.float() * torch.ones(4)).dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32


def test_module_precision() -> None:
    module = nn.Module()
    module.register_buffer("table", torch.polar(torch.ones(3), torch.ones(3)))
    assert in_precision(module, torch.float64).table.dtype == torch.complex128
    with pytest.warns(UserWarning, match="discards the imaginary part"):
        assert module.to(torch.float64).table.dtype == torch.float64


def test_exporter_output(capfd: pytest.CaptureFixture[str]) -> None:
    def once(*, quiet: bool) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if quiet:
                with without_exporter_output():
                    _onnx(lambda x: x + 1)
            else:
                _onnx(lambda x: x + 1)
        return [str(each.message) for each in caught]

    assert once(quiet=False) or capfd.readouterr().err
    assert not once(quiet=True)
    assert capfd.readouterr() == ("", "")


def _onnx(
    function: Any, x: Tensor = X, table: dict[Any, Any] | None = None, opset: int | None = None
) -> torch.onnx.ONNXProgram:
    shapes = ({0: Dim("B"), 1: Dim("T")},)
    program = torch.onnx.export(
        Calls(function).eval(),
        (x,),
        dynamo=True,
        dynamic_shapes=shapes,
        custom_translation_table=table,
        opset_version=opset,
        verbose=False,
    )
    assert program is not None
    return program


@pytest.mark.parametrize("start", [0.0, 0.5])
def test_arange_from_a_float(tmp_path: Path, start: float) -> None:
    with without_exporter_output():
        program = _onnx(lambda x: x + torch.arange(start, x.shape[1]))
    program.save(tmp_path / "m.onnx")
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="different types"):
        onnxruntime.InferenceSession(tmp_path / "m.onnx")


def test_aranges_of_floats(tmp_path: Path) -> None:
    """Their sums, at other lengths than the traced one."""

    def sums(x: Tensor, arange: Any) -> Tensor:
        n = x.shape[1]
        calls: list[tuple[Any, ...]] = [(0.0, n), (0, n, 2.0), (n, 0.0, -1), (1.0 - n, n), (n / 2,)]
        calls += [(0.5, n), (0, n, 0.25), (0, n, 0.3), (0.25, n, 1.5), (0, 10.0), (0.5, 4, 0.3)]
        ranges = [arange(*call) for call in calls] + [arange(start=0.0, end=n)]
        assert all(elements.dtype == torch.float32 for elements in ranges)
        return x.sum() + torch.stack([elements.square().mean() for elements in ranges])

    with without_exporter_output():
        program = _onnx(lambda x: sums(x, lambda *args, **kwargs: arange.elements(torch.arange, args, kwargs)))
    program.save(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for length in (2, 7, 50):
        x = torch.zeros(1, length)
        (got,) = session.run(None, {"x": x.numpy()})
        agree(got, sums(x, torch.arange), "operator", torch.float32)


def test_linspace_of_a_length() -> None:
    with pytest.raises(Exception, match="constant"):
        export(lambda x: x + torch.linspace(0, 1, x.shape[1]))
    export(lambda x: x + _elements(torch.linspace, 0, 1, x.shape[1]))


def _elements(func: Any, *args: Any) -> Any:
    return arange.elements(func, args, {})


def test_adaptive_pooling_to_a_grid(tmp_path: Path) -> None:
    x = torch.randn(2, 13, 17, generator=torch.Generator().manual_seed(0))
    shapes = ({0: Dim("B"), 1: Dim("H"), 2: Dim("W")},)

    def session(pool: Any) -> onnxruntime.InferenceSession:
        call = Calls(lambda x: pool(x, (3, 4)))
        with without_exporter_output():
            program = torch.onnx.export(call, (x,), dynamo=True, dynamic_shapes=shapes, verbose=False)
        assert program is not None
        program.save(tmp_path / "m.onnx")
        return onnxruntime.InferenceSession(tmp_path / "m.onnx")

    def right(session: onnxruntime.InferenceSession, image: Tensor) -> bool:
        try:
            (means,) = session.run(None, {"x": image.numpy()})
            agree(means, F.adaptive_avg_pool2d(image, (3, 4)), "operator", torch.float32)
        except (AssertionError, onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument):
            return False
        return True

    # also an image that the grid divides, and one of fewer pixels
    images = torch.randn(5, 7, 6), torch.randn(1, 12, 16), torch.randn(2, 2, 31)
    alone = session(F.adaptive_avg_pool2d)
    assert right(alone, x)
    assert not right(alone, images[1])
    mended = session(lambda x, size: adaptive_pool.pooled(F.adaptive_avg_pool2d, (x, size), {}))
    assert all(right(mended, image) for image in (x, *images))


def test_constant_ranges() -> None:
    def mean(x: Tensor) -> Tensor:
        return x.mean(torch.arange(1, x.dim()).tolist())

    def known(x: Tensor) -> Tensor:
        with with_constant_ranges():
            return mean(x)

    with pytest.raises(Exception, match=r"data-dependent|symbol"):
        export(mean)
    assert torch.equal(export(known).module()(X), mean(X))


def test_byte_masks() -> None:
    def masked(x: Tensor, where: Any) -> Any:
        return where((x > 0).to(torch.uint8), x, 2 * x)

    with pytest.raises(Exception, match="bool"), without_exporter_output():
        _onnx(lambda x: masked(x, torch.where))
    with without_exporter_output():
        _onnx(lambda x: masked(x, lambda *args: byte_masks.chosen(torch.where, args, {})))


def test_stacks_of_two_types(tmp_path: Path) -> None:
    x, kinds = torch.randn(3, 5), torch.arange(6).reshape(3, 2)

    def export_of(stack: Any) -> str:
        with without_exporter_output():
            program = torch.onnx.export(Calls(lambda x: stack([x, kinds])), (x,), dynamo=True, verbose=False)
        assert program is not None
        path = tmp_path / "m.onnx"
        program.save(path)
        return str(path)

    with pytest.raises(Exception, match="SequenceConstruct"):
        onnxruntime.InferenceSession(export_of(torch.column_stack))
    mended = onnxruntime.InferenceSession(export_of(lambda parts: stacks.stacked(torch.column_stack, [parts], {})))
    agree(mended.run(None, {"x": x.numpy()})[0], torch.column_stack([x, kinds]), "operator", torch.float32)


@pytest.mark.parametrize("stack", [torch.hstack, torch.vstack, torch.dstack, torch.column_stack])
@pytest.mark.parametrize("axes", [(), (3,), (3, 2), (3, 2, 2)])
def test_stacks_are_pytorch_s(stack: Any, axes: tuple[int, ...]) -> None:
    parts = [torch.rand(axes), torch.ones(axes, dtype=torch.int64)]
    agree(stacks.stacked(stack, [parts], {}), stack(parts), "same values", torch.float32)


def test_complex_views() -> None:
    table = torch.polar(torch.ones(13, 3), torch.rand(13, 3))

    def rotated(x: Tensor, unsqueeze: Any) -> Tensor:
        rows = unsqueeze(table, 0)
        return torch.view_as_real(torch.view_as_complex(x) * rows)

    x = torch.zeros(3, 13, 3, 2)
    with without_exporter_output():
        with pytest.raises(torch.onnx.errors.OnnxExporterError, match="complex"):
            torch.onnx.export(Calls(lambda x: rotated(x, torch.unsqueeze)), (x,), dynamo=True)
        torch.onnx.export(
            Calls(lambda x: rotated(x, lambda *args: complex_views.called(torch.unsqueeze, args, {}))),
            (x,),
            dynamo=True,
        )


def test_vmap_index() -> None:
    def columns(x: Tensor, index: Any) -> Tensor:
        mapped: Tensor = torch.vmap(lambda i, j: index(x, (i, j)))(*torch.zeros(2, x.shape[1], dtype=torch.int64))
        return mapped

    with pytest.raises(RuntimeError, match="item"):
        export(lambda x: columns(x, lambda table, at: table[at]))
    export(lambda x: columns(x, lambda table, at: indexed(Tensor.__getitem__, (table, at))))


class Helps(nn.Module):
    """Its forward calls a helper."""

    def forward(self, x: Tensor) -> Tensor:
        return self.helper(x)

    def helper(self, x: Tensor) -> Tensor:
        return x.sin()


def _stack_of_sine() -> str:
    program = torch.export.export(Helps(), (X,))
    (node,) = [node for node in program.graph.nodes if "sin" in str(node.target)]
    return node.stack_trace or ""


def test_helper_lines() -> None:
    assert "x.sin()" not in _stack_of_sine()
    with with_helper_lines():
        assert "x.sin()" in _stack_of_sine()


class KeepsBias(nn.Module):
    """A bias by distance that is made for the longest input so far, as x-transformers' ALiBi is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if self.bias is None or self.bias.shape[0] < length:
            at = torch.arange(length)
            self.register_buffer("bias", -(at[:, None] - at).abs().float(), persistent=False)
        return x + self.bias[:length, :length].sum(0)


def test_module_state() -> None:
    alone, kept = KeepsBias(), KeepsBias()
    shapes = ({0: Dim("B"), 1: Dim("T")},)
    torch.export.export(alone, (X,), dynamic_shapes=shapes)
    with pytest.raises(RuntimeError):
        alone(X)  # the trace's tensor is its bias now
    with with_state_kept(kept):
        torch.export.export(kept, (X,), dynamic_shapes=shapes)
    assert kept.bias is None
    assert kept(X).shape == X.shape


def test_a_buffer_that_forward_registers(tmp_path: Path) -> None:
    module = KeepsBias().eval()
    proven(module, tmp_path / "bundle", example_inputs={"x": X})


class MasksToTheLongest(nn.Module):
    """A mask of as many columns as the longest row."""

    def __init__(self, known: bool) -> None:
        super().__init__()
        self.known = known

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        with WholeRow([lengths] if self.known else [], x.shape[1]):
            mask = torch.arange(((lengths - 1) * 2 // 2 + 1).max()) < lengths[:, None]
            if mask.shape != x.shape:
                raise ValueError(f"a mask of the shape {mask.shape}, for {x.shape}")
            return x * mask


def test_whole_row() -> None:
    shapes = ({0: Dim("B"), 1: Dim("T")}, {0: Dim("B")})
    inputs = (X, torch.tensor([13, 2, 5]))
    with pytest.raises(Exception, match="data-dependent"):
        torch.export.export(MasksToTheLongest(known=False), inputs, dynamic_shapes=shapes)
    program = torch.export.export(MasksToTheLongest(known=True), inputs, dynamic_shapes=shapes)
    x, lengths = torch.randn(2, 7), torch.tensor([3, 7])
    assert torch.equal(program.module()(x, lengths), MasksToTheLongest(known=False)(x, lengths))


def test_distances() -> None:
    with pytest.raises(Exception, match="_cdist_forward"), without_exporter_output():
        _onnx(lambda x: torch.cdist(x, x))
    with without_exporter_output():
        _onnx(lambda x: distances.distances(torch.cdist, (x, x), {}))


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("mode", ["use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist"])
def test_distances_are_pytorch_s(p: float, mode: str) -> None:
    x1, x2 = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 4, 3, dtype=torch.float64)
    got = distances.distances(torch.cdist, (x1, x2), {"p": p, "compute_mode": mode})
    agree(got, torch.cdist(x1, x2, p), "model", torch.float64)


def _of_sounds(function: Any) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(Calls(function), (X,), dynamic_shapes=({0: Dim("B"), 1: Dim("T", min=6)},))


def test_max_pool() -> None:
    with pytest.raises(Exception, match="pecializ"):
        _of_sounds(lambda x: F.max_pool1d(x[:, None], 3))
    calls: list[tuple[Any, ...]] = [(3,), ((3,), 2, (1,)), (3, 1, 1, 2)]
    program = _of_sounds(lambda x: [max_pool.maxima(torch.max_pool1d, (x[:, None], *call), {}) for call in calls])
    for got, call in zip(program.module()(X[:, :9]), calls, strict=True):
        agree(got, torch.max_pool1d(X[:, None, :9], *call), "same values", torch.float32)


@pytest.mark.parametrize("bounds", [(1, 2.5), (torch.zeros(1), 0.5)], ids=["integer", "tensor"])
def test_clamps(bounds: tuple[Any, Any]) -> None:
    with pytest.raises(Exception, match="clamp"), without_exporter_output():
        _onnx(lambda x: torch.clamp(x, *bounds))
    with without_exporter_output():
        _onnx(lambda x: clamps.clamped(torch.clamp, (x, *bounds), {}))
    expected = X.clamp(float(bounds[0]), bounds[1])
    agree(clamps.clamped(torch.clamp, (X, *bounds), {}), expected, "same values", torch.float32)
    assert clamps.clamped(torch.clamp, (X, 0.0, 0.5), {}) is None


def test_splits_by_a_size() -> None:
    def parts(split: Any) -> Any:
        return lambda x: torch.cat(split(torch.cat((x, 2 * x)), x.shape[0]), -1)

    with pytest.raises(Exception, match="pecializ"):
        export(parts(torch.split))
    program = export(parts(lambda *args: splits.parts(torch.split, args, {})))
    assert torch.equal(program.module()(X[:2]), parts(torch.split)(X[:2]))


class Table(nn.Module):
    """Writes to a buffer, and reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(64, 13), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.kept[: x.shape[0]] = x
        result: Tensor = self.kept[: x.shape[0]].cos()
        return result


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
def test_a_table_in_two_places() -> None:
    table = Table()
    program = torch.export.export(nn.Sequential(table, table), (X,), dynamic_shapes=({0: Dim("B", max=64)},))
    with pytest.raises(AssertionError, match="compiled_fn"):
        program.run_decompositions()
    shared_buffers.separate(program)
    agree(program.run_decompositions().module()(X[:2]), X[:2].cos().cos(), "same values", torch.float32)


def test_groups_by_a_size() -> None:
    def convolved(convolve: Any) -> Any:
        return lambda x: convolve(x[None], torch.ones(x.shape[0], 1, 3), None, 1, 0, 1, x.shape[0])

    with pytest.raises(Exception, match="Unsupported attribute"), without_exporter_output():
        _onnx(convolved(torch.conv1d))
    with pytest.raises(Exception, match="specialized it to be a constant"):  # which says what is wrong
        export(convolved(lambda *args: grouped.convolved(torch.conv1d, args, {})))


def test_squeezes_of_a_longer_axis() -> None:
    def squeezed(squeeze: Any) -> Any:
        return lambda x: squeeze(torch.stack((x, 2 * x), 1), 1)

    with without_exporter_output():
        with pytest.raises(Exception, match="Squeeze"):
            onnx.checker.check_model(_onnx(squeezed(torch.squeeze)).model_proto, full_check=True)
        mended = _onnx(squeezed(lambda *args: squeezes.squeezed(torch.squeeze, args, {})))
    onnx.checker.check_model(mended.model_proto, full_check=True)


def test_known_values() -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("number", torch.tensor([0, 1]))

        def forward(self, x: Tensor) -> Tensor:
            return [x, 2 * x][self.number[1]] * torch.ones(shapes.Sizes(x.shape[:1]))[:, None]

    class Known(Chosen):
        def forward(self, x: Tensor) -> Tensor:
            with KnownValues(self, values):
                return super().forward(x)

    values = small_buffers(Known())
    with pytest.raises(Exception, match="data-dependent"):
        torch.export.export(Chosen(), (X,))
    program = torch.export.export(Known(), (X,), dynamic_shapes=({0: Dim("B")},))
    assert torch.equal(program.module()(X[:2]), 2 * X[:2])


def test_index_put_by_int32() -> None:
    def put(x: Tensor) -> Tensor:
        index = torch.arange(x.shape[0], dtype=torch.int32)
        return torch.zeros_like(x).index_put((index,), x)

    with without_exporter_output():
        node = next(node for node in _onnx(put).model.graph.all_nodes() if node.op_type == "ScatterND")
        assert node.inputs[1].dtype == ir.DataType.INT32
        table = dict.fromkeys(index_put.OPERATORS, index_put.index_put)
        node = next(node for node in _onnx(put, table=table).model.graph.all_nodes() if node.op_type == "ScatterND")
        assert node.inputs[1].dtype == ir.DataType.INT64


def test_norms_without_a_weight() -> None:
    def norm(x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, x.shape[2:])

    def scale(table: dict[Any, Any] | None) -> ir.Value:
        nodes = _onnx(norm, X[:, :, None].expand(-1, -1, 5), table, unit_scale.OPSET).model.graph.all_nodes()
        read = next(node for node in nodes if node.op_type == "RMSNormalization").inputs[1]
        assert read is not None
        return read

    with without_exporter_output():
        computed, constant = scale(None), scale(dict(translations(unit_scale.OPSET)))
    assert computed.const_value is None
    assert constant.const_value is not None
    assert constant.const_value.shape == (5,)


def test_products_of_batches_without_an_addend() -> None:
    def scores(x: Tensor, beta: float) -> Tensor:
        q = x[..., None].expand(-1, -1, 5)
        addend = torch.full((), torch.nan) if beta == 0 else x[:, None]
        return torch.baddbmm(addend, q, q.mT, beta=beta, alpha=0.3)

    with without_exporter_output():
        table = dict(translations(unit_scale.OPSET))
        plain, mended, added = (
            _onnx(partial(scores, beta=beta), table=table) for beta, table in ((0, None), (0, table), (0.5, table))
        )
    operators = [{node.op_type for node in program.model.graph.all_nodes()} for program in (plain, mended)]
    assert ["Add" in op_types for op_types in operators] == [True, False]
    for program, beta in ((mended, 0), (added, 0.5)):
        want = 1.5 * X[:, :, None].double() * X[:, None].double() + (beta * X[:, None].double() if beta else 0)
        agree(program(X)[0], want, "operator", torch.float32)


def test_shapes() -> None:
    def flat(x: Tensor) -> Tensor:
        return x.reshape(x.shape[:2].numel(), 1)

    class Known(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            sizes = shapes.counted(func, args, kwargs or {})
            return func(*args, **(kwargs or {})) if sizes is None else sizes

    def known(x: Tensor) -> Tensor:
        with Known():
            return flat(x)

    with pytest.raises(Exception, match="pecializ"):
        export(flat)
    assert torch.equal(export(known).module()(X[:, :7]), flat(X[:, :7]))


def test_compiled() -> None:
    compiled = torch.compile(lambda x: x.cos() if torch.compiler.is_compiling() else x.sin(), backend="eager")
    assert torch.equal(compiled(X), X.cos())
    with without_compiling():
        assert torch.equal(compiled(X), X.sin())
