"""Canine's own parts against their definition, one graph at every length, and what padding does to it."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx_ir
import onnxruntime
import pytest
import torch

from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.encodings.absolute import Absolute
from posexport.encodings.alibi import Alibi
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.graph.lowering import functions
from posexport.conversion.export.trace import trace
from posexport.models.canine import BlockAttention, Canine, CanineConfig, CanineModel, CharacterEmbeddings
from posexport.nn.attention import additive
from posexport.nn.heads import Features
from posexport.sources.source import Source, draw, model_of
from tests.tolerances import agree

pytestmark = pytest.mark.usefixtures("one_thread")

GOLDEN = Path(__file__).parents[1] / "golden"
CONFIG = CanineConfig.of(hidden=20, heads=5, layers=1, feedforward=17, types=3, hashes=4, buckets=53, stride=8, rate=4)


def model(config: CanineConfig = CONFIG) -> CanineModel:
    made = CanineModel(Canine(config, Absolute(max_positions=config.buckets, hidden=20)), Features(20), pooled=False)
    draw(made, 3)
    return made.eval()


def test_code_points_are_hashed_by_the_released_primes() -> None:
    embeddings = CharacterEmbeddings(CONFIG.changed(types=1), Absolute(max_positions=53, hidden=20)).double()
    draw(embeddings, 1)
    points = [0, 97, 0xE000, 0x10FFFF]
    wanted = np.stack(
        [
            np.concatenate(
                [
                    embeddings.hashed[i].weight[(point + 1) * prime % 53].detach().numpy()
                    for i, prime in enumerate((31, 43, 59, 61))
                ]
            )
            for point in points
        ]
    )
    wanted += embeddings.token_type.weight[0].detach().numpy() + embeddings.encoding.table[:4].detach().numpy()
    wanted = (wanted - wanted.mean(1, keepdims=True)) / np.sqrt(wanted.var(1, keepdims=True) + embeddings.norm.eps)
    wanted = wanted * embeddings.norm.weight.detach().numpy() + embeddings.norm.bias.detach().numpy()
    agree(embeddings(torch.tensor([points]), None)[0], wanted, "model", np.float64)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 21])
def test_blocks_attend_within_themselves(length: int) -> None:
    attention = BlockAttention(CONFIG).double()
    draw(attention, 2)
    x = torch.randn(2, length, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
    real = torch.ones(2, length, dtype=torch.bool)
    real[1, length // 3 :] = False  # leaves blocks that are all padding
    with torch.inference_mode():
        got = attention(x, real)
        q, k, v = (part(x).unflatten(-1, (5, 4)) for part in (attention.query, attention.key, attention.value))
        context = torch.empty_like(v)
        for row in range(2):
            for start in range(0, length, 8):
                block = range(start, min(start + 8, length))
                keys = [i for i in block if real[row, i]]
                for t in block:
                    for h in range(5):
                        # where nothing in the block is real, all of it counts alike
                        weights = (
                            (k[row, keys, h] @ q[row, t, h] / 2).softmax(0)
                            if keys
                            else torch.full((len(block),), 1 / len(block), dtype=torch.float64)
                        )
                        context[row, t, h] = weights @ v[row, keys or list(block), h]
        wanted = attention.output(context.flatten(2))
    agree(got, wanted, "model", np.float64)


def test_a_block_of_padding_stays_finite_in_half_precision() -> None:
    """Scores below zero, to which the lowest float16 is added, would be minus infinity all along the row."""
    attention = BlockAttention(CONFIG)
    draw(attention, 2)
    attention.query.bias.data.fill_(9)
    attention.key.bias.data.fill_(-9)
    x = torch.randn(1, 16, 20, generator=torch.Generator().manual_seed(0)).half()
    real = (torch.arange(16) < 8)[None]
    with torch.inference_mode():
        got = attention.half()(x, real).float()
        wanted = attention.double()(x.double(), real)
    assert torch.isfinite(got).all()
    assert (got - wanted)[:, 8:].abs().max() < 0.01 * wanted[:, 8:].abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_molecules_of_padding_are_read_alike_in_half_precision(dtype: torch.dtype) -> None:
    """Scores of some tens, which the lowest value of float16 does not absorb, weigh no key where all are dropped."""
    attention = model().encoder.deep[0].attention
    attention.query.bias.data.fill_(9)
    attention.key.bias.data.copy_(torch.linspace(-9, 9, 20))
    at = Positions.counted(3)
    x = torch.randn(2, 3, 20, generator=torch.Generator().manual_seed(0)).to(dtype)
    real = torch.tensor([[1, 1, 0], [0, 0, 0]])
    with torch.inference_mode():
        half = attention.to(dtype)
        got = half(x, x, additive(real, x), at, at).double()
        wide = attention.double()
        wanted = wide(x.double(), x.double(), additive(real, x.double()), at, at)
        mean = wide.output(wide.value(x.double()).mean(1))
    agree(wanted[1], mean[1].expand(3, -1), "model", np.float64)
    agree(got[1], wanted[1], "model in half precision", dtype)


@pytest.mark.all
def test_one_graph_is_right_at_every_length(tmp_path: Path) -> None:
    made = model()
    source = Source.of(model_of(made, "features", longest=50), name="canine", kind="builtin", sha256="")
    assert (source.limits.min_length, source.limits.max_length) == (4, 50)
    assert {8, 16, 50} <= set(source.limits.boundaries)
    assert not source.promises.padding_invariant
    assert not source.promises.shift_invariant
    path = tmp_path / "model.onnx"
    graph = trace(source, 18, optimize=False)
    functions.attach(graph)
    path.write_bytes(onnx_ir.to_proto(graph).SerializeToString())
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for length in (4, 5, 7, 8, 9, 15, 16, 17, 33, 50):
        ids = torch.randint(0, 0x110000, (3, length), generator=torch.Generator().manual_seed(length))
        mask = torch.ones_like(ids)
        mask[1, length // 3 :] = 0
        mask[2, : length // 2] = 0
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 3}
        with torch.inference_mode():
            wanted = made(**feeds)[0].numpy()
        got = session.run(None, {name: value.numpy() for name, value in feeds.items()})[0]
        agree(got, wanted, "model in float32", np.float32)


def test_padding_changes_real_characters_as_the_text_says() -> None:
    """On either side; its content too, but only where the last convolution reads it and what attends to that."""
    made = model().double()
    ids = torch.randint(1, 0x110000, (1, 14), generator=torch.Generator().manual_seed(0))
    ones = torch.ones_like(ids)

    def run(left: int, right: int, filler: int) -> tuple[torch.Tensor, torch.Tensor]:
        given = torch.nn.functional.pad(ids, (left, right), value=filler)
        mask = torch.nn.functional.pad(ones, (left, right))
        with torch.inference_mode():
            chars, molecules = made.encoder(given, mask != 0, None)
        return chars[:, left : left + 14], molecules[:, :4]

    alone = run(0, 0, 0)[0]
    (right, first), (other, second) = run(0, 9, 0), run(0, 9, 77)
    for padded in (right, run(9, 0, 0)[0]):
        assert (padded - alone).abs().max() > 0.01 * alone.abs().max()
    assert (right - other).abs().max() > 0.01 * alone.abs().max()
    # the fourth molecule, of the ninth to the twelfth character, stands where the mask has two real ones
    assert torch.equal(first, second)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(PosexportError, match="alibi: it acts on scores"):
        Canine(CONFIG, Alibi(heads=5))
    with pytest.raises(PosexportError, match="hashes must divide hidden=20"):
        CONFIG.changed(hashes=3)
    with pytest.raises(PosexportError, match="rate must be a whole number from 1 on, got 0"):
        CONFIG.changed(rate=0)


@pytest.mark.parametrize(("buckets", "positions", "limit"), [(37, 41, 37), (37, 30, 30)])
def test_the_limit_is_the_smaller_of_the_two(tmp_path: Path, buckets: int, positions: int, limit: int) -> None:
    source = checkpoint_source(
        _changed(tmp_path, {"max_position_embeddings": positions}), task=None, allow_pickle=False
    )
    assert source.module.get_submodule("encoder.embeddings.encoding").table.shape[0] == buckets
    assert (source.limits.min_length, source.limits.max_length) == (4, limit)
    assert max(source.limits.boundaries) == limit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hash_functions": 3}, "heads and hash functions must divide the size"),
        ({"num_hash_functions": 20}, "must be a whole number from 1 to 16"),
        ({"position_embedding_type": "relative_key"}, "of canine only absolute is read"),
        ({"downsampling_rate": 38}, "must be at least downsampling_rate = 38, the shortest input"),
    ],
)
def test_a_configuration_that_does_not_fit(tmp_path: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(PosexportError, match=message):
        checkpoint_source(_changed(tmp_path, change), task=None, allow_pickle=False)


def _changed(tmp_path: Path, change: dict[str, object]) -> Path:
    shutil.copytree(GOLDEN / "canine-model", tmp_path, dirs_exist_ok=True)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return tmp_path
