"""Lazy parameters of a large checkpoint: a converted graph has the values of the file.

Their storage, which nothing may read, is filled with NaN here.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import posexport
from posexport.conversion.export.by_layers import lazy_initializers
from posexport.conversion.export.by_layers import trace as by_layers
from posexport.conversion.export.by_layers.levels import SMALL, UnlikeError
from posexport.graph.queries import FOLDED_FROM
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


def deep(folder: Path, *, tied: bool = False) -> Path:
    """A Llama of six layers in bfloat16, the matrices of which are too large for the exporter to fold."""
    sizes = {"hidden_size": 120, "intermediate_size": 200, "num_attention_heads": 5, "num_key_value_heads": 5}
    torch.manual_seed(3)
    config = LlamaConfig(**sizes, num_hidden_layers=6, vocab_size=300, tie_word_embeddings=tied, bos_token_id=1)
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
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

    monkeypatch.setattr(memory_mapped, "LARGE", 0)
    monkeypatch.setattr(memory_mapped, "LEAST", 20_000)
    monkeypatch.setattr("posexport.sources.lazy_parameters.lazy", counted)
    assert converted("got") == wanted
    assert len(asked) > 36


def test_a_source_has_all_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_mapped, "LARGE", 0)
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
