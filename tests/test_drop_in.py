"""Calls of ``torch.onnx.export`` with another name: the same inputs, outputs and values, or one sentence."""

import functools
import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import posexport
from posexport.drop_in.example import example_call
from posexport.errors import PosexportError
from posexport.export.negotiate import LOWEST_OPSET
from tests.drop_in_forms import FORMS, Acoustic, Form, Gpt, Layer, Speech, ids, real
from tests.small import in_short

#: forms that run always
SHORT = ("nested cache", "text to speech", "open file")
#: arguments with which a test is short
QUICK: dict[str, Any] = {"lengths": [2, 5], "threads": 1}
Axes = list[int | str]


def ends(path: Path) -> tuple[dict[str, tuple[int, Axes]], dict[str, tuple[int, Axes]]]:
    """Element type and axes of the file's inputs and outputs."""
    graph = onnx.load(path, load_external_data=False).graph

    def axes(value: Any) -> tuple[int, Axes]:
        kind = value.type.tensor_type
        return kind.elem_type, [dim.dim_param or dim.dim_value for dim in kind.shape.dim]

    return {value.name: axes(value) for value in graph.input}, {value.name: axes(value) for value in graph.output}


def run(path: Path, feeds: Mapping[str, Any]) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def called(form: Form, module: nn.Module, path: Path) -> dict[str, Any]:
    """The arguments of the form's call."""
    seen: dict[str, Any] = {}

    class Program:
        def save(self, _path: Path) -> None: ...

    def record(model: nn.Module, args: Any = (), f: Any = None, **options: Any) -> Program:
        seen.update(options, args=args)
        return Program()

    form.call(record, module, path)
    return seen


def feeds_of(form: Form, path: Path) -> dict[str, Tensor]:
    """Inputs of other sizes than the example's, a token padded where a mask says so."""
    found = {}
    for name, (kind, axes) in ends(path)[0].items():
        shape = [form.sizes.get(axis, axis) if isinstance(axis, str) else axis for axis in axes]
        sizes = [size if isinstance(size, int) else list(form.sizes.values())[i] for i, size in enumerate(shape)]
        if kind == onnx.TensorProto.FLOAT:
            found[name] = real(*sizes)
        elif "mask" in name:
            padded = torch.arange(sizes[1]).expand(sizes) < 2
            found[name] = padded if kind == onnx.TensorProto.BOOL else (~padded).long()
        elif "len" in name:
            found[name] = torch.arange(3, 3 + sizes[0])
        else:
            found[name] = ids(*sizes, most=2)
    return found


@pytest.mark.parametrize("form", in_short(FORMS, lambda form: form.name in SHORT), ids=lambda form: form.name)
def test_the_form_gives_the_module_s_values_under_the_names_that_were_asked_for(form: Form, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, path = form.module().eval(), tmp_path / "model.onnx"
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch_onnx_export ignores")
        form.call(functools.partial(posexport.torch_onnx_export, lengths=form.lengths, threads=1), module, path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    asked = called(form, module, tmp_path / "recorded.onnx")
    inputs, outputs = ends(path)
    assert list(inputs)[: len(asked.get("input_names") or ())] == list(asked.get("input_names") or ())
    assert list(outputs) == list(asked["output_names"])
    for name, axes in (asked.get("dynamic_axes") or {}).items():
        got = {**inputs, **outputs}[name][1]
        named = axes if isinstance(axes, dict) else {axis: f"{name}_dynamic_axes_{i + 1}" for i, axis in enumerate(axes)}
        assert [axis if isinstance(axis, str) else "" for axis in got] == [named.get(i, "") for i in range(len(got))]
    call = example_call(module, asked["args"], asked.get("kwargs"), asked.get("input_names"))
    feeds = feeds_of(form, path)
    args, kwargs = call.filled(feeds)
    with torch.no_grad():
        expected = [leaf for leaf in pytree.tree_leaves(module(*args, **kwargs)) if isinstance(leaf, Tensor)]
    got = run(path, {name: tensor.numpy() for name, tensor in feeds.items()})
    for (name, array), tensor in zip(got.items(), expected, strict=True):
        assert array.dtype == tensor.numpy().dtype
        np.testing.assert_allclose(array, tensor.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.all
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_torch_s_own_file_has_the_same_inputs_outputs_and_values(form: Form, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, ours, theirs = form.module().eval(), tmp_path / "ours.onnx", tmp_path / "theirs.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        form.call(functools.partial(posexport.torch_onnx_export, parity=False), module, ours)
        try:
            form.call(torch.onnx.export, module, theirs)
        except Exception as err:  # noqa: BLE001 (of any class of torch's)
            assert form.fails, f"torch {torch.__version__}: {err}"
            assert form.fails in str(err)
            return
    if torch.__version__.startswith("2.13"):
        assert not form.fails, "torch exports it: say so in the list of forms"
    for own, other in zip(ends(ours), ends(theirs), strict=True):
        assert list(own) == list(other)
        for name, (kind, axes) in own.items():
            assert kind == other[name][0]
            # torch writes formulas and symbols of its own where a name is ours or the script's
            assert [isinstance(axis, str) for axis in axes] == [isinstance(axis, str) for axis in other[name][1]], name
    feeds = {name: tensor.numpy() for name, tensor in feeds_of(form, ours).items()}
    for own_value, other_value in zip(run(ours, feeds).values(), run(theirs, feeds).values(), strict=True):
        np.testing.assert_allclose(own_value, other_value, rtol=1e-4, atol=1e-5)


class Pooled(nn.Module):
    """Small, so that most tests are quick."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.layer(x).mean(1) * scale


BATCH = {"dynamic_axes": {"x": {0: "batch"}}, "input_names": ["x"]}


def exported(module: nn.Module, *args: Any, **options: Any) -> Any:
    return posexport.torch_onnx_export(module, *args, **{**QUICK, **options})


def test_the_whole_grid_is_proven_before_the_file_appears(tmp_path: Path) -> None:
    done = posexport.torch_onnx_export(Pooled().eval(), (real(1, 5, 12), 3.0), tmp_path / "p.onnx", threads=1, **BATCH)
    assert done.verdict == "proven"
    entries = {entry.key: entry.value for entry in done.model_proto.metadata_props}
    assert entries["posexport.parity"] == "proven"
    assert '"axes": ["batch", 5, 12]' in entries["posexport.inputs"]
    x = real(2, 5, 12)
    expected = Pooled().eval()
    expected.load_state_dict({k: torch.tensor(v) for k, v in _weights(tmp_path / "p.onnx", expected).items()}, strict=False)
    assert run(tmp_path / "p.onnx", {"x": x.numpy()})["output"].shape == (2, 12)


def _weights(path: Path, module: nn.Module) -> dict[str, Any]:
    stored = {value.name: onnx.numpy_helper.to_array(value) for value in onnx.load(path).graph.initializer}
    return {name: stored[name] for name in module.state_dict() if name in stored}
