"""A large decoder of transformers' code: a few of its layers tell all of it, and a wrong layer is found."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import posexport
from posexport.conversion.export.build import build
from posexport.conversion.export.by_layers import trace as by_layers
from posexport.errors import PosexportError
from posexport.nn.layer_states import States
from posexport.proof.full_model.check import Layers, check
from posexport.proof.full_model.records import NotComparableError
from posexport.proof.quantized.records import StoredError
from posexport.proof.reduced.reduction import Reduction, parameters_of, reduction_of
from posexport.sources import memory_mapped
from posexport.sources.lazy_parameters import is_lazy
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from tests.conversion.export.test_by_layers import OPSET
from tests.small import recipe

transformers = pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")

#: convolutions, and attention in layers 2, 5 and 8
ATTENTION, LAYERS, VOCAB = (2, 5, 8), 11, 2050
STACK = "user.module.model.model.layers"


def saved(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    config = transformers.Lfm2Config(
        vocab_size=VOCAB,
        hidden_size=40,
        intermediate_size=56,
        num_hidden_layers=LAYERS,
        num_attention_heads=5,
        num_key_value_heads=1,
        max_position_embeddings=64,
        full_attn_idxs=[*ATTENTION],
        block_auto_adjust_ff_dim=False,
        pad_token_id=VOCAB - 1,
    )
    torch.manual_seed(0)
    model = transformers.Lfm2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.15) if parameter.dim() > 1 else parameter.normal_(1, 0.1)
    model.to(dtype).save_pretrained(folder)
    return folder


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model counts as large."""
    for module in ("posexport.sources.memory_mapped", "posexport.through.module"):
        monkeypatch.setattr(f"{module}.LARGE", 0)
    monkeypatch.setattr(memory_mapped, "LEAST", 64)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Reduction:
    folder = saved(tmp_path_factory.mktemp("lfm2"))
    found = reduction_of(load_source(str(folder), LoadOptions()))
    assert isinstance(found, Reduction), found
    return found


def test_layers_states_and_words_are_those_that_were_left(few: Reduction) -> None:
    """One attention after convolutions, and the end; layers count themselves anew; the full model is as it was."""
    kept = few.stacks[STACK].kept
    assert (kept[0], kept[-1]) == (0, LAYERS - 1)
    assert few.words is not None
    module = few.source.module
    attentions = sum(index in ATTENTION for index in kept)
    names = [spec.name for spec in few.source.inputs]
    assert sum(name.startswith("past_key_values") for name in names) == 2 * attentions
    assert sum(name.startswith("past_conv") for name in names) == len(kept) - attentions
    ids = torch.arange(7)[None]
    (logits, *_) = module(ids, torch.ones_like(ids))
    assert logits.shape == (1, 7, few.words.reduced)
    (whole, *_) = few.full.module(ids, torch.ones_like(ids))
    assert whole.shape == (1, 7, VOCAB)
    assert len(few.full.module.get_submodule(STACK)) == LAYERS


@pytest.mark.all
@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_a_wrong_layer_is_found(few: Reduction, precision: str, tmp_path: Path) -> None:
    """Weights of two layers exchanged, and one bit of one weight, in layers that the reduced model lacks."""
    options = recipe(task="text-generation", opset=23, target="cpu", precision=precision)
    build(few.full, tmp_path / "full.onnx", options)
    build(few.source, tmp_path / "reduced.onnx", options)

    def compared(file: Path) -> Layers:
        parameters = parameters_of(few.full.module), parameters_of(few.source.module)
        inputs = few.full.inputs
        return check(
            file,
            tmp_path / "reduced.onnx",
            few.stacks,
            *parameters,
            inputs=inputs,
            words=few.words,
            quantizer="rtn" if precision == "int4" else None,
        )

    assert compared(tmp_path / "full.onnx").layers == LAYERS
    lacking = [layer for layer in range(LAYERS) if layer not in few.stacks[STACK].kept and layer not in ATTENTION]
    weights = parameters_of(few.full.module)
    one, other = (weights[f"{STACK}.{layer}.feed_forward.w1.weight"].detach().numpy() for layer in lacking[:2])
    for exchange in (True, False):
        model = onnx.load(tmp_path / "full.onnx")
        first, second = (_holding(model, array, precision) for array in (one, other))
        if exchange:
            first.raw_data, second.raw_data = second.raw_data, first.raw_data
        else:
            raw = bytearray(first.raw_data)
            raw[5] ^= 16
            first.raw_data = bytes(raw)
        onnx.save(model, tmp_path / "wrong.onnx")
        # where weights say which layer a node is of, exchanged ones are no chain: a proof of the full model decides
        with pytest.raises((StoredError, NotComparableError) if exchange else StoredError):
            compared(tmp_path / "wrong.onnx")


@pytest.mark.usefixtures("lazy")
def test_a_checkpoint_in_16_bits_is_proven_on_a_few_layers(tmp_path: Path) -> None:
    folder = saved(tmp_path / "checkpoint", torch.bfloat16)
    assert any(map(is_lazy, load_source(str(folder), LoadOptions(), lazy=True).module.parameters()))
    report = posexport.convert(folder, tmp_path / "out", target="cpu", proof="reduced", lengths=[17]).report
    assert report is not None
    assert report.passed
    assert report.reduced is not None
    assert report.reduced.kept < report.reduced.layers == LAYERS


@pytest.mark.usefixtures("lazy")
def test_layers_that_have_the_state_of_each_other_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "checkpoint", torch.bfloat16)
    tensors = States.tensors

    def exchanged(states: States) -> tuple[torch.Tensor, ...]:
        first, second, *others = tensors.fget(states)  # type: ignore[misc]
        return (second, first, *others)

    monkeypatch.setattr(States, "tensors", property(exchanged))
    with pytest.raises(PosexportError, match="its logits are others than without"):
        load_source(str(folder), LoadOptions())


def _holding(model: onnx.ModelProto, weight: np.ndarray, precision: str) -> onnx.TensorProto:
    """The tensor of a weight: of its numbers, or of rounded ones with the scales that are nearest to its."""
    arrays = [(tensor, numpy_helper.to_array(tensor)) for tensor in model.graph.initializer]
    if precision == "fp32":
        return next(t for t, a in arrays if any(a.shape == w.shape and (a == w).all() for w in (weight, weight.T)))
    largest = np.abs(weight.reshape(len(weight), -1)[:, :32]).max(1) / 8
    scales = [(t.name, a.reshape(len(weight), -1)[:, 0]) for t, a in arrays if _is_scale(t, a, len(weight))]
    nearest, _ = min(scales, key=lambda each: float(np.abs(np.abs(each[1]) - largest).sum()))
    return next(t for t, _ in arrays if t.name.startswith(nearest.removesuffix("_scale")) and t.name != nearest)


def _is_scale(tensor: onnx.TensorProto, array: np.ndarray, rows: int) -> bool:
    return tensor.name.endswith("_scale") and array.size % rows == 0


def test_weights_that_layers_compute_do_not_keep_them_from_being_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_layers, "LARGE", 0)
    sizes = {"hidden_size": 40, "intermediate_size": 56, "num_attention_heads": 5, "num_key_value_heads": 1}
    config = transformers.GemmaConfig(**sizes, head_dim=8, num_hidden_layers=6, vocab_size=61)
    torch.manual_seed(0)
    transformers.GemmaForCausalLM(config).save_pretrained(tmp_path / "gemma")
    source = load_source(str(tmp_path / "gemma"), LoadOptions(definition="transformers"))
    (few,) = by_layers.few_layers(source).values()
    assert few.kept < few.layers
    by_layers.repeated(few, OPSET)  # 1 + weight is of no parameter
