"""Calls of ``torch.onnx.export`` with another name: the same inputs, outputs and values, or one sentence."""

import functools
import io
import warnings
from collections.abc import Mapping
from dataclasses import replace
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
from posexport.conversion.export.negotiate import LOWEST_OPSET
from posexport.errors import PosexportError
from posexport.serve.drop_in import finish
from posexport.serve.drop_in.axes import DynamicAxis, from_dynamic_shapes
from posexport.serve.drop_in.equal_axes import equal_axes
from posexport.serve.drop_in.example import example_call
from posexport.serve.drop_in.type_adapters import input_adapter
from tests.drop_in_forms import FORMS, Form, Gpt, Layer, Speech, ids, real
from tests.small import in_short
from tests.tolerances import agree

#: forms that run always
SHORT = ("nested cache", "text to speech", "open file")
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

    def record(*positional: Any, **options: Any) -> Program:
        seen.update({"args": positional[1] if positional[1:] else ()} | options)
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


@pytest.mark.all(but=("nested cache",))
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
        named = (
            axes if isinstance(axes, dict) else {axis: f"{name}_dynamic_axes_{i + 1}" for i, axis in enumerate(axes)}
        )
        assert [axis if isinstance(axis, str) else "" for axis in got] == [named.get(i, "") for i in range(len(got))]
    call = example_call(module, asked["args"], asked.get("kwargs"), asked.get("input_names"))
    feeds = feeds_of(form, path)
    args, kwargs = call.filled(feeds)
    with torch.no_grad():
        expected = [leaf for leaf in pytree.tree_leaves(module(*args, **kwargs)) if isinstance(leaf, Tensor)]
    got = run(path, {name: tensor.numpy() for name, tensor in feeds.items()})
    for array, tensor in zip(got.values(), expected, strict=True):
        assert array.dtype == tensor.numpy().dtype
        agree(array, tensor, "model in float32", np.float32)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.all
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_torch_s_own_file_has_the_same_inputs_outputs_and_values(form: Form, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, ours, theirs = form.module().eval(), tmp_path / "ours.onnx", tmp_path / "theirs.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        form.call(functools.partial(posexport.torch_onnx_export, parity=False), module, ours)
        if form.fails and torch.__version__.startswith("2.13"):
            with pytest.raises(Exception, match=form.fails):  # of any class of torch's
                form.call(torch.onnx.export, module, theirs)
            return
        form.call(torch.onnx.export, module, theirs)
    for own, other in zip(ends(ours), ends(theirs), strict=True):
        assert list(own) == list(other)
        for name, (kind, axes) in own.items():
            assert kind == other[name][0]
            # torch writes formulas and symbols of its own where a name is ours or the script's
            assert [isinstance(axis, str) for axis in axes] == [isinstance(axis, str) for axis in other[name][1]], name
    feeds = {name: tensor.numpy() for name, tensor in feeds_of(form, ours).items()}
    for own_value, other_value in zip(run(ours, feeds).values(), run(theirs, feeds).values(), strict=True):
        agree(own_value, other_value, "model in float32", np.float32)


class Pooled(nn.Module):
    """Small, so that most tests are quick."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.layer(x).mean(1) * scale


class Differs(Pooled):
    """Computes something else while it is exported."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(x, scale) * (1.01 if torch.compiler.is_compiling() else 1.0)


class Fixed(Pooled):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(x.reshape(2, 5, 12), scale)


BATCH: dict[str, Any] = {"dynamic_axes": {"x": {0: "batch"}}, "input_names": ["x"]}


def exported(module: nn.Module, args: Any, f: Any = None, *positional: Any, **options: Any) -> Any:
    return posexport.torch_onnx_export(module, args, f, *positional, **{"threads": 1, **options})


def refusal(module: nn.Module, args: Any, f: Any = None, *positional: Any, **options: Any) -> str:
    """What a call is refused with, in one line."""
    with pytest.raises(PosexportError) as caught:
        exported(module, args, f, *positional, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_whole_grid_is_proven_and_the_file_says_so(tmp_path: Path) -> None:
    module = Pooled().train()
    done = exported(module, (real(1, 5, 12), 3.0), tmp_path / "p.onnx", **BATCH)
    assert module.training
    assert done.verdict.startswith("proven")
    entries = {entry.key: entry.value for entry in done.model_proto.metadata_props}
    assert entries["posexport.parity"] == done.verdict
    assert '"axes": ["batch", 5, 12]' in entries["posexport.inputs"]
    x = real(2, 5, 12)
    with torch.no_grad():
        got = run(tmp_path / "p.onnx", {"x": x.numpy()})["output"]
        agree(got, module.eval()(x, 3.0), "model in float32", np.float32)


@pytest.mark.all
def test_a_file_that_is_there_stays_where_the_proof_misses(tmp_path: Path) -> None:
    path = tmp_path / "p.onnx"
    path.write_text("old")
    said = refusal(Differs(), real(1, 5, 12), path, **BATCH)
    assert "parity was missed" in said
    assert "output" in said
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("p.onnx", "old")]
    exported(Differs(), real(1, 5, 12), path, parity=False, **BATCH)
    assert onnx.load(path).producer_name == "posexport"
    entries = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert entries["posexport.parity"].startswith("NOT proven")


@pytest.mark.all
def test_a_renamed_graph_is_compared_with_the_proven_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(Pooled):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x) - super().forward(y)

    names = finish.FileNames

    def swapped(**fields: Any) -> finish.FileNames:
        first, second = fields["inputs"]
        ports = [replace(first, name=second.name), replace(second, name=first.name)]
        return names(**{**fields, "inputs": ports})

    monkeypatch.setattr(finish, "FileNames", swapped)
    with pytest.raises(AssertionError, match="not the proven graph's"):
        exported(Two(), (real(1, 5, 12), -real(1, 5, 12)), tmp_path / "p.onnx", parity=False)
    assert not list(tmp_path.iterdir())


def test_arguments_by_position_as_torch_took_them_before_2_5(tmp_path: Path) -> None:
    eval_mode = torch.onnx.TrainingMode.EVAL
    exported(Pooled(), real(1, 5, 12), str(tmp_path / "p.onnx"), True, False, eval_mode, ["a"], ["b"], parity=False)
    assert [list(side) for side in ends(tmp_path / "p.onnx")] == [["a"], ["b"]]
    assert "13 more arguments" in refusal(Pooled(), real(1, 5, 12), None, *([None] * 14))


def test_what_has_no_meaning_is_named_in_one_warning() -> None:
    with pytest.warns(UserWarning, match="ignores") as warned:
        exported(
            Pooled(), real(1, 5, 12), parity=False, verbose=True, dynamo=False, do_constant_folding=False,
            report=True, artifacts_dir="x", opset_version=LOWEST_OPSET - 1, autograd_inlining=False, verify=True,
        )  # fmt: skip
    assert [str(one.message) for one in warned] == [
        "torch_onnx_export ignores verbose, dynamo, report, artifacts_dir, do_constant_folding, autograd_inlining, "
        f"opset_version={LOWEST_OPSET - 1} (the lowest that is written is {LOWEST_OPSET})"
    ]
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"custom_opsets": {"own": 1}}, "custom_opsets={'own': 1}: operators of other domains"),
        ({"custom_translation_table": {len: len}}, "posexport chooses the operators"),
        ({"training": torch.onnx.TrainingMode.TRAINING}, "converted in eval mode"),
        ({"training": torch.onnx.TrainingMode.PRESERVE}, "converted in eval mode"),
        ({"operator_export_type": torch.onnx.OperatorExportTypes.ONNX_FALLTHROUGH}, "only ONNX operators"),
        ({"export_params": False}, "the weights are part of what is proven"),
        ({"keep_initializers_as_inputs": True}, "weights that callers may replace"),
        ({"input_names": ["a", "b"]}, "2 input_names for 1 tensors"),
        ({"output_names": ["a", "b"]}, "2 output_names for 1 outputs"),
        ({"input_names": ["a"], "output_names": ["a"]}, "'a' is the name of an input and of an output"),
        ({"kwargs": {"y": 1}}, "forward does not take the example"),
        ({"dynamic_axes": {"z": {0: "b"}}}, "dynamic_axes has 'z', which is no name of an input or output: x, output"),
        ({"dynamic_axes": {"x": {3: "b"}}}, "'x' has 3 axes in the example, and no axis 3"),
        ({"dynamic_axes": {"output": [2]}}, "output 'output' has 2 axes in the example, and no axis 2"),
        ({"args": real(1, 5, 11)}, "on the example itself (drop_in_forms.py line"),
        ({"dynamic_axes": {"x": {0: 1}}}, "must map whole numbers to names"),
        ({"dynamic_axes": {"x": [0]}, "dynamic_shapes": {"x": [0]}}, "not both"),
        ({"dynamic_shapes": {"z": {0: "b"}}}, "dynamic_shapes has 'z'"),
        ({"dynamic_shapes": ({0: "b"}, None)}, "2 entries for the 1 arguments x"),
        ({"dynamic_shapes": {"x": ["b"]}}, "or a list of its 3 axes"),
        ({"dynamic_shapes": {"x": {0: 2 * torch.export.Dim("b")}}}, "a torch.export.Dim of its own"),
        ({"dynamic_axes": {"x": {2: "width"}}}, "axis 2 of input 'x' (width) is declared to vary and cannot"),
        ({"f": "nowhere/p.onnx"}, "nowhere is no directory"),
        ({"f": 3}, "f must be a path, a binary buffer or None, got int"),
        ({"f": io.BytesIO(), "external_data": True}, "a buffer, which has no place beside"),
        ({"args": ()}, "forward does not take the example"),
        ({"args": real(1, 5, 12).half()}, "torch.float16; convert the module in float32"),
        ({"args": (real(1, 5, 12), object())}, "argument scale holds object"),
        ({"args": real(0, 5, 12)}, "has no elements, shape [0, 5, 12]"),
        ({"model": Pooled().half()}, "has parameters of torch.float16; give model.float()"),
        ({"model": torch.relu}, "takes an nn.Module, got builtin_function_or_method"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_change_the_file_or_cannot_be_is_one_sentence(asked: dict[str, Any], words: str) -> None:
    given = {"args": real(1, 5, 12), "model": Pooled(), **asked}
    assert words in refusal(given.pop("model"), given.pop("args"), **given)


def test_an_axis_that_cannot_vary_is_named(tmp_path: Path) -> None:
    said = refusal(Fixed(), real(2, 5, 12), tmp_path / "p.onnx", **BATCH)
    assert "axis 0 of input 'x' (batch) is declared to vary and cannot" in said
    assert "x.reshape(2, 5, 12)" in said
    auto = {"x": {0: torch.export.Dim.AUTO, 1: torch.export.Dim.STATIC, 2: None}}
    exported(Fixed(), real(2, 5, 12), tmp_path / "p.onnx", dynamic_shapes=auto, parity=False)
    assert ends(tmp_path / "p.onnx")[0]["x"][1] == [2, 5, 12]


@pytest.mark.all
def test_a_limit_of_a_dim_is_a_limit_of_the_file(tmp_path: Path) -> None:
    shapes = ((torch.export.Dim.DYNAMIC, torch.export.Dim("tokens", max=7)),)
    exported(Gpt(), (ids(2, 5),), tmp_path / "g.onnx", dynamic_shapes=shapes, parity=False, output_names=["logits"])
    inputs, outputs = ends(tmp_path / "g.onnx")
    assert inputs["idx"][1] == ["idx_dim_0", "tokens"]
    assert outputs["logits"][1] == ["idx_dim_0", "tokens", 37]
    assert run(tmp_path / "g.onnx", {"idx": ids(3, 7).numpy()})["logits"].shape == (3, 7, 37)
    with pytest.raises(Exception, match="8"):
        run(tmp_path / "g.onnx", {"idx": ids(3, 8).numpy()})


def test_axes_of_a_nested_example_are_nested_or_by_name() -> None:
    class Nested(nn.Module):
        def forward(self, x: Tensor, more: Any) -> Tensor: ...

    call = example_call(Nested(), (real(2, 3),), {"more": [{"a": real(2, 4)}, (real(5, 6), None, 7)]}, ["in", "first"])
    assert [leaf.name for leaf in call.leaves] == ["in", "first", "more_1_0"]
    batch = torch.export.Dim("batch")
    nested = from_dynamic_shapes(call, {"x": {0: batch}, "more": [{"a": {0: batch}}, ([None, "w"], None, None)]})
    assert {place: axis.name for place, axis in nested.items()} == {
        ("in", 0): "batch",
        ("first", 0): "batch",
        ("more_1_0", 1): "w",
    }
    assert list(from_dynamic_shapes(call, {"first": {1: "n"}})) == [("first", 1)]
    with pytest.raises(PosexportError, match="'more' is not nested like the example: nothing at 'a'"):
        from_dynamic_shapes(call, {"more": [{"b": None}, None]})


def test_axes_of_one_name_have_one_size() -> None:
    axes = {("x", 0): DynamicAxis("N"), ("x_lens", 0): DynamicAxis("N")}
    with pytest.raises(PosexportError, match="'N' has the size 2 in the example's 'x' and 3 in its 'x_lens'"):
        equal_axes("M", lambda _: None, {"x": real(2, 5), "x_lens": real(3)}, axes)


def test_counts_begin_at_one_and_none_is_no_input() -> None:
    done = exported(Speech(), (ids(1, 4), torch.tensor([4]), real(3), None), parity=False)
    assert [value.name for value in done.model.graph.inputs] == ["text", "text_lengths", "scales"]
    assert any("input text_lengths: all counts from 1 on" in remark for remark in done.remarks)


def test_a_buffer_and_a_program_hold_the_same_as_the_file(tmp_path: Path) -> None:
    module, buffer = Pooled(), io.BytesIO()
    program = exported(module, real(1, 5, 12), buffer, parity=False)
    program.save(tmp_path / "p.onnx")
    assert buffer.getvalue() == (tmp_path / "p.onnx").read_bytes()
    assert program.model_proto.graph.input[0].name == "x"


@pytest.mark.all
def test_weights_stand_beside_the_file_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Pooled(), real(1, 5, 12)
    exported(module, x, tmp_path / "p.onnx", external_data=True, parity=False)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["p.onnx", "p.onnx.data"]
    exported(module, x, tmp_path / "q.onnx", external_data=False, parity=False)
    beside, inside = (run(tmp_path / name, {"x": x.numpy()})["output"] for name in ("p.onnx", "q.onnx"))
    assert np.array_equal(beside, inside)
    monkeypatch.setattr(finish, "LARGEST", 2000)
    exported(module, x, tmp_path / "r.onnx", parity=False)
    assert (tmp_path / "r.onnx.data").exists()
    assert "more than one .onnx holds" in refusal(module, x, tmp_path / "s.onnx", external_data=False, parity=False)
    assert not (tmp_path / "s.onnx").exists()


@pytest.mark.parametrize(
    ("name", "tensor", "shift"),
    [
        ("attention_mask", torch.ones(1, 4).long(), ""),
        ("attention_mask", torch.tensor([[1, 1, 0, 0]]), ""),
        ("src_key_padding_mask", torch.zeros(1, 4).bool(), "inverted"),
        ("padding_mask", torch.tensor([[0, 0, 0, 1]]), "inverted"),
        ("tgt_mask", torch.ones(4, 4).triu(1).bool(), "inverted"),
        ("attn_mask", torch.ones(4, 4).tril().bool(), ""),
        ("x_lens", torch.tensor([4, 3]), "counted"),
        ("x_lens", torch.tensor([4, 0]), ""),
        ("input_ids", torch.tensor([4, 3]), ""),
    ],
)
def test_what_an_integer_means(name: str, tensor: Tensor, shift: str) -> None:
    adapter = input_adapter(name, tensor, "i")
    assert adapter.shift == shift
    inner = adapter.to_bundle(tensor)
    assert inner.dtype == torch.int64
    assert torch.equal(adapter.from_bundle(inner), tensor)
    if "mask" in name and tensor.dim() == 2 and tensor.shape[0] == 1:
        assert inner[0, 0] == 1


def test_names_that_inner_values_have_and_outputs_of_every_kind(tmp_path: Path) -> None:
    class Kinds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, place: Tensor) -> Any:
            y = torch.relu(self.second(torch.relu(self.first(x))))
            return y, [{"same": y, "none": None, "input": x}], y > 0.1, y.argmax(-1), x.shape[0] + place

    module, x, path = Kinds().eval(), real(3, 4), tmp_path / "k.onnx"
    names = ["relu", "linear", "input", "flags", "ids", "sum"]
    exported(
        module,
        (x, torch.tensor(7)),
        path,
        input_names=["first.weight"],
        output_names=names,
        dynamic_axes={"first.weight": [0]},
        parity=False,
    )
    inputs, outputs = ends(path)
    assert inputs == {"first.weight": (1, ["first.weight_dynamic_axes_1", 4]), "place": (7, [])}
    assert [(name, kind, len(axes)) for name, (kind, axes) in outputs.items()] == [
        ("relu", 1, 2), ("linear", 1, 2), ("input", 1, 2), ("flags", 9, 2), ("ids", 7, 1), ("sum", 7, 0)
    ]  # fmt: skip
    expected = [leaf for leaf in pytree.tree_leaves(module(real(5, 4), torch.tensor(6))) if leaf is not None]
    got = run(path, {"first.weight": real(5, 4).numpy(), "place": np.array(6)})
    for array, tensor in zip(got.values(), expected, strict=True):
        agree(array, tensor, "model in float32", np.float32)


@pytest.mark.parametrize("size", [1, 2, 8])
@pytest.mark.parametrize("step", [1, 4])
def test_axes_are_tied_where_the_module_takes_no_others(size: int, step: int) -> None:
    """Also where the example's batch is 1, which is broadcast, and where lengths go in steps or end at a table's."""

    def call(tensors: dict[str, Tensor]) -> None:
        ids, mask, other = tensors["ids"], tensors["mask"], tensors["other"]
        assert ids.shape[1] % step == 0
        assert ids.shape[1] <= 4 * step * size
        assert (ids + mask).shape == ids.shape
        assert other.shape[0] in (1, ids.shape[0])

    tensors = {name: torch.zeros(size, 4 * step) for name in ("ids", "mask", "other")}
    axes = {(name, axis): DynamicAxis(f"{name}{axis}") for name in tensors for axis in (0, 1)}
    symbols = equal_axes("M", call, tensors, axes)
    places = sorted([[f"{name}{axis}" for name, axis in symbol.members] for symbol in symbols])
    # one size alone says nothing of which of three equal axes must be equal
    assert ["ids0", "mask0", "other0"] in places
    assert any({"ids1", "mask1"} <= set(group) for group in places)
