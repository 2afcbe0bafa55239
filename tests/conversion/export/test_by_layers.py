"""Models of many equal layers are traced by a few of them: the graph must be the one of all layers' trace."""

import ast
import copy
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import posexport
from posexport.conversion.export.by_layers import trace as by_layers
from posexport.conversion.export.by_layers import writer
from posexport.conversion.export.by_layers.levels import UnlikeError, names_by_parameter
from posexport.conversion.export.trace import as_traced, trace
from posexport.proof.full_model.records import Stack
from posexport.proof.reduced import reduction
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.source import Source

GOLDEN = Path(__file__).parents[2] / "golden"
OPSET = 23
#: one of each family whose layers are in a list and are not one layer's weights
FAMILIES = [
    "bart-forconditionalgeneration",
    "bert-lmheadmodel",
    "bert-relative_key_query",
    "bloom-forcausallm",
    "deberta-v2-formaskedlm",
    "esm-activation-model",
    "falcon-forcausallm",
    "falcon-old-forcausallm",
    "gemma3-forcausallm",
    "gpt2-lmheadmodel",
    "gpt_bigcode-forcausallm",
    "gpt_neo-forcausallm",
    "gpt_neox-forcausallm",
    "gptj-forcausallm",
    "granite-forcausallm",
    "llama-forcausallm",
    "marian-mtmodel",
    "mbart-forconditionalgeneration",
    "megatron-bert-absolute",
    "mistral-forcausallm",
    "modernbert-formaskedlm",
    "t5-encodermodel",
    "t5-forconditionalgeneration",
    "whisper-forconditionalgeneration",
]


def grown(source: Source) -> Source:
    """``source`` with three times as many layers and more, each with weights of its own."""
    module = reduction.copy_with_same_weights(source.module)
    names = names_by_parameter(source.module)
    paths: list[str] = []
    for path, stack in list(module.named_modules()):
        if not isinstance(stack, nn.ModuleList) or len(stack) < 2 or path.startswith(tuple(f"{p}." for p in paths)):
            continue
        paths.append(path)
        indices = [*range(len(stack) - 1)] * 3 + [len(stack) - 1] if len(stack) > 2 else [0] * 5 + [1]
        owner, _, attribute = path.rpartition(".")
        assert reduction._keep(module.get_submodule(owner), attribute, indices) is None
        # what several layers or other parts share stays one parameter
        shared = {id(p): p for p, each in names.items() if len({_layer(name, path) for name in each}) > 1}
        layers = nn.ModuleList(copy.deepcopy(layer, dict(shared)) for layer in module.get_submodule(path))
        for number, layer in enumerate(layers):
            torch.manual_seed(number)
            for parameter in layer.parameters():
                if id(parameter) not in shared:
                    parameter.data = torch.randn_like(parameter)
        setattr(module.get_submodule(owner), attribute, layers)
    many = reduction._source(source, module.eval(), None)
    return msgspec.structs.replace(many, parts=many.module.parts)


def _layer(name: str, path: str) -> str:
    return name.removeprefix(f"{path}.").partition(".")[0] if name.startswith(f"{path}.") else ""


def content(model: ir.Model) -> list[Any]:
    """What a graph computes, without the names of its values: equal for equal graphs."""
    digests: dict[ir.Value, str] = {}
    axes = {value: [str(size) for size in value.shape or ()] for value in model.graph.inputs}
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        array = np.ascontiguousarray(value.const_value.numpy())
        digests[value] = hashlib.sha256(array.tobytes()).hexdigest() + str(array.shape)
    digests |= {value: str(value.name) for value in model.graph.inputs}
    for node in model.graph:
        read = [None if value is None else digests[value] for value in node.inputs]
        if node.op_type == "Shape" and node.inputs[0] in axes:  # any input with this axis says its size
            start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", 99)
            read = axes[node.inputs[0]][start:end]
        attributes = sorted((name, str(attribute.value)) for name, attribute in node.attributes.items())
        *modules, _ = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "['']"))
        if not any(value is not None and value.is_initializer() and "." in str(value.name) for value in node.inputs):
            modules = []  # of what layers share, the scope is the layer's that needs it first
        described = repr((node.domain, node.op_type, attributes, read, modules))
        for number, output in enumerate(node.outputs):
            digests[output] = hashlib.sha256(f"{described} {number}".encode()).hexdigest()
    outputs = [(value.name, str(value.shape), digests[value]) for value in model.graph.outputs]
    return [[(value.name, str(value.shape)) for value in model.graph.inputs], outputs, len(list(model.graph))]


def compare(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_layers, "LARGE", 0)
    few = by_layers.few_layers(source)
    assert few
    for file, graph in source.graphs.items():
        if file in few:
            assert content(by_layers.repeated(few[file], OPSET)) == content(trace(as_traced(graph), OPSET)), file


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.all) for name in FAMILIES])
def test_the_graph_is_that_of_all_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(grown(load_source(str(GOLDEN / name), LoadOptions())), monkeypatch)


@pytest.mark.parametrize("name", ["encoder-rope", pytest.param("decoder-rope", marks=pytest.mark.all)])
def test_a_built_in_model_is_repeated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(load_source(name, LoadOptions(settings=("layers=5", "hidden=120", "heads=5", "vocab=300"))), monkeypatch)


@pytest.mark.all
def test_a_hybrid_of_transformers_code_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States of Mamba's layers, and parameters of theirs that the exporter computes with beforehand."""
    transformers = pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    config = transformers.GraniteMoeHybridConfig(
        vocab_size=300,
        hidden_size=48,
        intermediate_size=64,
        shared_intermediate_size=64,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["attention" if layer in (3, 7) else "mamba" for layer in range(12)],
        mamba_n_heads=6,
        mamba_d_head=16,
        mamba_d_state=16,
        mamba_n_groups=1,
        num_local_experts=0,
        num_experts_per_tok=0,
        max_position_embeddings=64,
        position_embedding_type="nope",
    )
    torch.manual_seed(0)
    transformers.GraniteMoeHybridForCausalLM(config).save_pretrained(tmp_path)
    compare(load_source(str(tmp_path), LoadOptions()), monkeypatch)


@pytest.mark.parametrize(
    ("kinds", "traced"),
    [
        ("AAAAAA", [0, 1, 1, 1, 1, 2]),
        ("ABABABAB", [0, 1, 2, 1, 2, 1, 2, 5]),
        ("BAAAAA", [0, 1, 2, 2, 2, 3]),
        ("AABAABAABAAB", [0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 8]),
        ("AAABAAABAAABAAAB", [0, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 9]),
        ("AABAABAABABABABA", [0, 1, 2, 3, 1, 2, 3, 1, 2, 6, 2, 6, 2, 6, 2, 8]),
        ("AAAAAB", [0, 1, 1, 1, 2, 3]),
    ],
)
def test_a_layer_is_what_follows_layers_of_its_kinds(kinds: str, traced: list[int]) -> None:
    kept = reduction.chosen(kinds, traced=True)
    assert kept is not None
    assert by_layers.chosen_for(Stack(list(kinds), kept)) == traced


def test_layers_that_no_traced_one_stands_for_are_refused() -> None:
    with pytest.raises(UnlikeError):
        by_layers.chosen_for(Stack(list("AABBA"), [0, 4]))


class Scaled(nn.Module):
    """A layer that multiplies its input by a number which only a closure holds."""

    def __init__(self, layer: nn.Module, number: float) -> None:
        super().__init__()
        self.layer, self.scaled = layer, lambda x: x * number

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.layer(self.scaled(x), *args, **kwargs)


SETTINGS = ("layers=6", "hidden=40", "heads=5", "vocab=300")


def scaled(name: str, numbers: list[float]) -> Source:
    """A built-in model, each layer with a number that `reduction.kind_of` cannot see."""
    source = load_source(name, LoadOptions(settings=SETTINGS))
    path = next(path for path, module in source.module.named_modules() if isinstance(module, nn.ModuleList))
    owner, _, attribute = path.rpartition(".")
    layers = nn.ModuleList(map(Scaled, source.module.get_submodule(path), numbers))
    setattr(source.module.get_submodule(owner), attribute, layers)
    return source


def test_layers_of_a_kind_have_equal_attributes() -> None:
    def layer(**attributes: Any) -> nn.Module:
        module = nn.LayerNorm(4)
        vars(module).update(attributes)
        return module

    same = [layer(index=number, _scale=2.0, activation=torch.relu) for number in range(2)]
    assert len({reduction.kind_of(each) for each in same}) == 1
    others = [layer(_scale=3.0, activation=torch.relu), layer(_scale=2.0, activation=nn.functional.gelu)]
    assert len({reduction.kind_of(each) for each in (*same, *others)}) == 3


@pytest.mark.all
def test_traced_layers_that_differ_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    source = scaled("encoder-rope", [1, 2, 3, 4, 5, 6])
    monkeypatch.setattr(by_layers, "LARGE", 0)
    few = by_layers.few_layers(source)["model.onnx"]
    with pytest.raises(UnlikeError):
        by_layers.repeated(few, OPSET)
    assert content(by_layers.trace_by_layers(few, OPSET)) == content(trace(source, OPSET))


def weight_of_the_next(patch: pytest.MonkeyPatch) -> None:
    right = writer.Writer._weight

    def wrong(self: writer.Writer, value: ir.Value, layer: writer.Layer) -> ir.Value:
        made = right(self, value, layer)
        if layer.number == 2:
            made.const_value = right(self, value, replace(layer, number=3)).const_value
        return made

    patch.setattr(writer.Writer, "_weight", wrong)


def a_layer_is_passed_over(patch: pytest.MonkeyPatch) -> None:
    right, written = writer.Writer.add, {}

    def wrong(self: writer.Writer, layer: writer.Layer, before: writer.Layer | None) -> None:
        written[layer.number] = layer
        right(self, layer, written[1] if layer.number == 3 else before)

    patch.setattr(writer.Writer, "add", wrong)


def one_layer_differs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("posexport.sources.prepare.load_source", lambda name, _, **__: scaled(name, [1, 1, 1, 1.5, 1, 1]))


@pytest.mark.all
@pytest.mark.fresh
@pytest.mark.parametrize("broken", [None, weight_of_the_next, a_layer_is_passed_over, one_layer_differs])
def test_the_proof_finds_what_was_repeated_wrongly(
    broken: Callable[[pytest.MonkeyPatch], None] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (by_layers, reduction):
        monkeypatch.setattr(module, "LARGE", 0)
    if broken is not None:
        broken(monkeypatch)
    report = posexport.convert("encoder-rope", tmp_path / "b", settings=SETTINGS).report
    assert report is not None
    assert report.passed == (broken is None), report.describe()
