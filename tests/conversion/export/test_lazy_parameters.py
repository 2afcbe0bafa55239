"""Lazy parameters of a large checkpoint: a converted graph has the values of the file.

Their storage, which nothing may read, is filled with NaN here.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import posexport
from posexport.conversion.export.by_layers import lazy_initializers
from posexport.conversion.export.by_layers import trace as by_layers
from posexport.conversion.export.by_layers.levels import SMALL, UnlikeError
from posexport.graph.queries import FOLDED_FROM
from posexport.run.bundle.manifest import PARITY, SAMPLE
from posexport.sources import lazy_parameters, memory_mapped
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from tests.conversion.export.test_by_layers import OPSET, content

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere they are in a temporary file")

make_lazy = lazy_parameters.lazy


def lazy_of_nan(shape: Sequence[int], make: Callable[[], Tensor], pages: nn.Parameter | None = None) -> nn.Parameter:
    """`lazy_parameters.lazy` with NaN in its storage."""
    parameter = make_lazy(shape, make, pages)
    assert parameter is not None
    parameter.data.fill_(torch.nan)
    return parameter


@pytest.mark.parametrize("name", ["decoder-rope", "encoder-deberta", "encoder-decoder-t5"])
def test_graphs_are_those_of_weights_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_layers, "LARGE", 0)
    source = load_source(name, LoadOptions(settings=("layers=5", "hidden=120", "heads=5", "vocab=300")))
    wanted = {file: content(by_layers.repeated(few, OPSET)) for file, few in by_layers.few_layers(source).items()}
    assert wanted
    # the exporter folds small ones
    large = {p: lazy_of_nan(p.shape, p.detach().clone) for p in source.module.parameters() if p.numel() > SMALL}
    assert len(large) > 9
    for module in source.module.modules():
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            if parameter in large:
                setattr(module, leaf, large[parameter])
    for file, few in by_layers.few_layers(source).items():
        assert content(by_layers.repeated(few, OPSET)) == wanted[file], file


def deep(folder: Path, *, tied: bool = False, vocab: int = 300) -> Path:
    """A Llama of six layers in bfloat16, the matrices of which are too large for the exporter to fold."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "max_position_embeddings": 300}
    torch.manual_seed(3)
    config = LlamaConfig(**sizes, num_hidden_layers=6, vocab_size=vocab, tie_word_embeddings=tied, bos_token_id=1)
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:  # drawn as equal ones, which no layer has for itself
            nn.init.normal_(parameter, 1, 0.05)
    model.bfloat16().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_file_has_the_weights_of_its_checkpoint(
    precision: str, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = deep(tmp_path / "checkpoint", tied=tied)

    def converted(name: str) -> bytes:
        posexport.convert(checkpoint, tmp_path / name, verify=False, precision=precision, target="cpu")
        return (tmp_path / name / "model.onnx").read_bytes()

    monkeypatch.setattr(by_layers, "LARGE", 0)
    wanted, asked = converted("wanted"), list[Sequence[int]]()

    def counted(shape: Sequence[int], make: Callable[[], Tensor], pages: nn.Parameter | None) -> nn.Parameter:
        asked.append(shape)
        return lazy_of_nan(shape, make, pages)

    monkeypatch.setattr(memory_mapped, "SHARED", 0)
    monkeypatch.setattr(memory_mapped, "LEAST", 20_000)
    monkeypatch.setattr("posexport.sources.lazy_parameters.lazy", counted)
    assert converted("got") == wanted
    assert len(asked) > 36


@pytest.mark.parametrize(("precision", "tied"), [("fp32", True), ("int4", False)])
def test_a_proof_reads_the_checkpoint_itself(
    precision: str, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = deep(tmp_path / "checkpoint", tied=tied, vocab=3000)
    how: dict[str, Any] = {"precision": precision, "target": "cpu", "proof": "reduced", "lengths": [17]}

    def converted(name: str) -> dict[str, bytes]:
        result = posexport.convert(checkpoint, tmp_path / name, **how)
        assert result.report is not None
        assert result.report.reduced is not None
        return {file: (tmp_path / name / file).read_bytes() for file in ("model.onnx", PARITY, SAMPLE)}

    monkeypatch.setattr(by_layers, "LARGE", 0)
    wanted, kept = converted("wanted"), list[int]()
    keep = memory_mapped.Scratch.keep

    def counted(scratch: memory_mapped.Scratch, value: Tensor) -> nn.Parameter:
        kept.append(value.numel())
        return keep(scratch, value)

    monkeypatch.setattr(memory_mapped, "SHARED", 0)
    monkeypatch.setattr(memory_mapped, "LEAST", 20_000)
    monkeypatch.setattr(memory_mapped.Scratch, "keep", counted)
    monkeypatch.setattr("posexport.sources.lazy_parameters.lazy", lazy_of_nan)
    assert converted("got") == wanted
    # two layers and the norms of all
    layer = 4 * 128 * 128 + 3 * 128 * 256
    assert sum(kept) < 2.1 * layer


def a_sign(one: ir.Value, _: ir.Value) -> None:
    """One number gets another sign."""
    array = content_of(one).copy()
    array.flat[7] *= -1
    one.const_value = ir.Tensor(array)


def exchanged(one: ir.Value, other: ir.Value) -> None:
    one.const_value, other.const_value = other.const_value, one.const_value


def content_of(value: ir.Value) -> NDArray[np.float32]:
    assert value.const_value is not None
    return np.asarray(value.const_value.numpy())


@pytest.mark.parametrize(("precision", "mistake"), [("fp32", a_sign), ("fp32", exchanged), ("int4", exchanged)])
def test_a_mistake_in_a_layer_that_the_reduced_model_lacks_fails_the_proof(
    precision: str, mistake: Callable[[ir.Value, ir.Value], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = deep(tmp_path / "checkpoint", vocab=3000)
    stored = load_file(checkpoint / "model.safetensors")
    middle = [stored[f"model.layers.{layer}.mlp.down_proj.weight"].float().numpy() for layer in (2, 3)]

    def make_wrong(graph: ir.Graph, modules: Iterable[nn.Module]) -> None:
        lazy_initializers.make_lazy(graph, modules)
        values = [value for value in graph.initializers.values() if content_of(value).size == middle[0].size]
        mistake(*(next(v for v in values if content_of(v).tolist() in (w.tolist(), w.T.tolist())) for w in middle))

    monkeypatch.setattr(by_layers, "LARGE", 0)
    monkeypatch.setattr(memory_mapped, "SHARED", 0)
    monkeypatch.setattr(memory_mapped, "LEAST", 20_000)
    monkeypatch.setattr("posexport.sources.lazy_parameters.lazy", lazy_of_nan)
    monkeypatch.setattr(by_layers, "make_lazy", make_wrong)
    result = posexport.convert(
        checkpoint, tmp_path / "got", precision=precision, target="cpu", proof="reduced", lengths=[17]
    )
    assert result.manifest is None
    assert result.report is not None
    assert not result.report.passed


def test_a_source_has_all_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_mapped, "SHARED", 0)
    monkeypatch.setattr(memory_mapped, "LEAST", 20_000)
    checkpoint = deep(tmp_path / "checkpoint")
    monkeypatch.setattr("posexport.sources.lazy_parameters.lazy", lazy_of_nan)
    lazy = load_source(str(checkpoint), LoadOptions(), lazy=True).module
    assert any(lazy_parameters.is_lazy(parameter) for parameter in lazy.parameters())
    whole = load_source(str(checkpoint), LoadOptions()).module
    stored = load_file(checkpoint / "model.safetensors")["model.layers.2.mlp.down_proj.weight"].float()
    assert any(parameter.shape == stored.shape and torch.equal(parameter, stored) for parameter in whole.parameters())
    for one, other in zip(whole.parameters(), lazy.parameters(), strict=True):
        assert not lazy_parameters.is_lazy(one)
        assert torch.equal(one, lazy_parameters.values(other))


@pytest.mark.parametrize("how", ["sliced", "folded"])
def test_what_was_computed_from_storage_without_values_is_refused(how: str) -> None:
    module = nn.Linear(120, 110, bias=False)
    parameter = lazy_of_nan((110, 120), lambda: torch.ones(110, 120))
    module.weight = parameter
    whole = parameter.detach().numpy()
    value = ir.Value(name="w", const_value=ir.Tensor(whole))
    graph = ir.Graph([], [], nodes=[], initializers=[value])
    lazy_initializers.make_lazy(graph, [module])
    assert value.const_value is not None
    assert (value.const_value.numpy() == 1).all()
    value.const_value = ir.Tensor(whole[3:] if how == "sliced" else whole * 2)
    if how == "folded":
        value.metadata_props[FOLDED_FROM] = repr(["weight"])
    with pytest.raises(UnlikeError):
        lazy_initializers.make_lazy(graph, [module])
