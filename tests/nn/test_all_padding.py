"""A query whose keys are all dropped reads zeros, in PyTorch and in what `posexport convert` writes.

Whole rows of padding, and the tokens before the first real one of a decoder.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import posexport
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.encodings.positions import Positions
from posexport.nn import Attention
from posexport.nn.attention import additive, sees_any
from posexport.nn.projections import Projections
from posexport.run.bundle.read import read as manifest_of
from posexport.sources.builtin import builtin_source
from tests.small import by_attention, shared

GOLDEN = Path(__file__).parents[1] / "golden"
FAMILIES = [
    "bert-absolute",
    "deberta-v2-formaskedlm",
    "gemma2-forcausallm",
    "gpt2-lmheadmodel",
    "longformer-model",
    "modernbert-formaskedlm",
    "mpnet-model",
    "t5-encodermodel",
    "wav2vec2-bert-relative",
    "xlnet-model",
]
LENGTH = 13
#: of a row's tokens, from, to: whole, padded behind, padded before, all padding
REAL = ((0, LENGTH), (0, 6), (5, LENGTH), (0, 0))


def masks() -> torch.Tensor:
    """1 for real tokens, [B, T]."""
    mask_BT = torch.zeros(len(REAL), LENGTH, dtype=torch.int64)
    for row, (start, end) in enumerate(REAL):
        mask_BT[row, start:end] = 1
    return mask_BT


@pytest.mark.parametrize("causal", [False, True])
def test_who_sees_a_key(causal: bool) -> None:
    mask_BT = masks()
    at = Positions.counted(LENGTH)
    found = sees_any(additive(mask_BT, torch.zeros(1)), (at, at) if causal else None)
    for row in range(len(REAL)):
        for query in range(LENGTH):
            seen = mask_BT[row, : query + 1 if causal else LENGTH].any()
            assert found.expand(-1, LENGTH, -1)[row, query, 0] == seen


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("encoding", ["t5", "shaw-kv", "rope", "alibi"])
def test_nothing_is_read(encoding: str, causal: bool) -> None:
    torch.manual_seed(0)
    layer = Attention(60, 5, encoding, causal=causal)
    x_BTC = torch.randn(len(REAL), LENGTH, 60)
    y_BTC = layer(x_BTC, masks())
    bias_C = layer.output.bias
    assert torch.equal(y_BTC[3], bias_C.expand(LENGTH, -1))
    assert torch.equal(y_BTC[2, 0], bias_C) == causal
    assert not torch.equal(y_BTC[2, 5], bias_C)


def test_a_context_of_padding() -> None:
    torch.manual_seed(0)
    layer = Attention(60, 5, "nope")
    x_BTC, context_BSC = torch.randn(len(REAL), 4, 60), torch.randn(len(REAL), LENGTH, 60)
    y_BTC = layer(x_BTC, masks(), context=context_BSC)
    assert torch.equal(y_BTC[3], layer.output.bias.expand(4, -1))
    assert not torch.equal(y_BTC[1, 0], layer.output.bias)


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoints(family: str) -> None:
    """The output projections of all attentions get zeros for a row of padding, and no zeros for others."""
    source = checkpoint_source(GOLDEN / family, task=None, allow_pickle=False)
    mask_BT = masks()
    ids_BT = torch.arange(LENGTH) * 7 % 19 + 4 + torch.zeros(len(REAL), 1, dtype=torch.int64)
    names = {spec.name for spec in source.inputs}
    inputs = {"input_ids": ids_BT, "attention_mask": mask_BT}
    if "token_type_ids" in names:
        inputs["token_type_ids"] = ids_BT % 2
    if "input_features" in names:
        features = next(spec for spec in source.inputs if spec.name == "input_features").axes[2]
        assert isinstance(features, int)
        inputs = {"input_features": torch.randn(len(REAL), LENGTH, features), "attention_mask": mask_BT}
    read: list[torch.Tensor] = []
    for part in source.module.modules():
        if isinstance(part, Projections):
            part.output.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    with torch.no_grad():
        source.module(**inputs)
    assert read
    for read_BTC in read:
        assert not read_BTC[3].any()
        assert read_BTC[1, :6].any(-1).all()


NAMES = dict.fromkeys(("encoder-absolute", *by_attention("encoder-"), *by_attention("decoder-")))
#: every model with every precision and with both targets, which take turns
MODELS = [
    (name, ("portable", "cpu")[(number + turn) % 2], precision)
    for number, name in enumerate(NAMES)
    for turn, precision in enumerate(("fp32", "fp16", "int8"))
]


@pytest.mark.all(but=("decoder-rope-cpu-fp32",))
@pytest.mark.parametrize(("name", "target", "precision"), MODELS)
def test_bundles(name: str, target: str, precision: str, tmp_path: Path) -> None:
    """Every token of every row, padding too, is as in PyTorch: within what the precision costs real tokens.

    Where padding is left out, its outputs are zeros.
    """
    source = builtin_source(name, task=None, settings_given=shared(name))
    settings = dict(pair.split("=") for pair in shared(name))
    posexport.convert(
        name, tmp_path / "b", settings=settings, target=target, precision=precision, verify=False, remark=lambda _: None
    )
    session = posexport.load(tmp_path / "b")
    mask_BT = masks()
    ids_BT = torch.arange(LENGTH) * 7 % 59 + 1 + torch.arange(len(REAL))[:, None]
    inputs = {"input_ids": ids_BT, "attention_mask": mask_BT}
    outputs = session.run({key: value.numpy() for key, value in inputs.items()})
    answer = torch.from_numpy(np.asarray(next(iter(outputs.values()))))
    with torch.no_grad():
        wanted = source.module(**inputs)
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    assert torch.isfinite(answer).all()
    error_BT = (answer - wanted).abs().amax(-1) / wanted.abs().max()
    limit = {"fp32": 1e-5, "fp16": 2e-3, "int8": 0.03}[precision]
    if manifest_of(tmp_path / "b").passes["unpadding"].nodes:
        assert not answer[mask_BT == 0].any()
        error_BT[mask_BT == 0] = 0
    rows = [0, 1, 3] if name.startswith("encoder") else [0, 1, 2, 3]
    assert error_BT[rows].max() < limit
