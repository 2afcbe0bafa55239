"""Terms that depend on queries and keys: what holds for one of them and is not in the generic tests."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from posexport.conversion.export.build import build
from posexport.encodings.build import settings
from posexport.encodings.encoding import ENCODINGS, Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.models.encoder import EncoderConfig
from posexport.nn.attention import attend
from posexport.sources import builtin
from posexport.sources.example import example
from posexport.sources.source import Source
from tests.encodings.test_input_encodings import made
from tests.small import in_short, recipe
from tests.tolerances import agree, allowed

SIZES = {"hidden": 20, "heads": 5, "head_size": 4}


def scores(encoding: Encoding, q: torch.Tensor, k: torch.Tensor, queries: Positions, keys: Positions) -> torch.Tensor:
    return encoding.scores(q, k, queries, keys).dense(q=q, k=k).detach()


def source(encoding: str, *given: str) -> Source:
    sizes = ("layers=2", "hidden=20", "heads=5", "feedforward=37", "vocab=61")
    return builtin.builtin_source(f"encoder-{encoding}", task=None, settings_given=(*sizes, *given))


@pytest.mark.parametrize("entry", ENCODINGS.values(), ids=ENCODINGS)
def test_no_setting_is_also_the_definitions(entry):
    assert set(settings(entry)) & set(EncoderConfig.settings()) <= {"hidden", "heads"}


# test_lowering.py compares the others in the short run too
@pytest.mark.all
@pytest.mark.parametrize("name", in_short(["transformer-xl", "conformer", "deberta"], "conformer".__eq__))
@pytest.mark.parametrize("length", [1, 129])
def test_lowerings_agree_with_the_definition(name, length, tmp_path):
    given = source(name, *(("span=30",) if name == "deberta" else ()))
    feeds = example(given.inputs, {"batch_size": 2, "sequence_length": length})
    feeds["attention_mask"][1, length // 2 + 1 :] = 0
    with torch.no_grad():
        (want,) = given.module(**feeds)
    for lowering in ("formula", "blockwise"):
        path = tmp_path / f"{lowering}.onnx"
        build(given, path, recipe(lowering=lowering))
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (got,) = session.run(None, {key: tensor.numpy() for key, tensor in feeds.items()})
        agree(got[0], want[0], "attention", np.float32)


# transformer-xl


def test_memory_is_keys_before_the_queries():
    encoding = made("transformer-xl", **SIZES)
    q, k = torch.randn(2, 2, 5, 9, 4, dtype=torch.float64).unbind()
    whole = scores(encoding, q, k, Positions.counted(9), Positions.counted(9))
    late = Positions(ids_BT=torch.arange(6, 9)[None], slots_T=torch.arange(6, 9))
    agree(scores(encoding, q[:, :, 6:], k, late, Positions.counted(9)), whole[:, :, 6:], "encoding", np.float64)


def test_attention_adds_the_key_bias_to_its_queries():
    encoding = made("transformer-xl", **SIZES)
    q, k, v = torch.randn(3, 2, 5, 9, 4, dtype=torch.float64).unbind()
    here = Positions.counted(9)
    weights = (0.3 * (q @ k.mT + scores(encoding, q, k, here, here))).softmax(-1)
    term = encoding.scores(q, k, here, here)
    agree(attend(q, k, v, scale=0.3, scores=term).detach(), weights @ v, "attention", np.float64)
    without = replace(term, content_bias=None)
    assert (attend(q, k, v, scale=0.3, scores=without) - weights @ v).abs().max() > 0.1


def test_a_key_bias_needs_products_of_queries_and_keys():
    says = r"content bias.* is a part of q k\^T, which AdditiveScores replaces; use score=dot or score=general"
    given = source("transformer-xl", "score=additive")
    with pytest.raises(PosexportError, match=says), torch.no_grad():
        given.module(**example(given.inputs, {"batch_size": 1, "sequence_length": 3}))


def test_layouts_differ_by_the_order_of_channels():
    xl, conformer = made("transformer-xl", **SIZES), made("conformer", **SIZES)
    q, k = torch.randn(2, 2, 5, 9, 4, dtype=torch.float64).unbind()
    here = Positions.counted(9)
    with torch.no_grad():
        halves = xl.project.weight.unflatten(1, (2, 10))
        conformer.project.weight.copy_(halves.mT.flatten(1))
    agree(scores(conformer, q, k, here, here), scores(xl, q, k, here, here), "encoding", np.float64)


# nezha


def test_nezha_table_is_the_float64_one_rounded_once():
    rows = np.arange(7)[:, None] / 10000 ** (np.array([0, 0, 2, 2]) / 4)
    want = np.where(np.arange(4) % 2, np.cos(rows), np.sin(rows))
    encoding = ENCODINGS["nezha"].cls(clip=3, head_size=4)
    assert not list(encoding.parameters())
    assert not encoding.state_dict()
    here = Positions.counted(2)
    for dtype, numpy in ((torch.float16, np.float16), (torch.float32, np.float32), (torch.float64, np.float64)):
        encoding.to(dtype)
        q = torch.zeros(1, 1, 2, 4, dtype=dtype)
        for term in (encoding.scores(q, q, here, here), encoding.values(here, here)):
            assert term.tensors[0].dtype == dtype
            unit = np.spacing(np.abs(want).astype(numpy)).astype(np.float64)
            off = np.abs(term.tensors[0].double().numpy() - want)
            assert (off <= 0.5001 * unit + allowed("rounded", np.float64)).all()


# wav2vec2-bert


def test_left_and_right_are_clipped_apart():
    encoding = made("wav2vec2-bert", head_size=4, left=5, right=2)
    q = torch.randn(1, 5, 1, 4, dtype=torch.float64)
    here = Positions(ids_BT=torch.tensor([[10]]), slots_T=torch.tensor([10]))
    keys = Positions.counted(21)
    got = scores(encoding, q, torch.zeros(1, 5, 21, 4, dtype=torch.float64), here, keys)[0, 0, 0]
    plain = (q[0, 0, 0] @ encoding.table.mT).tolist()
    rows = [min(max(j - 10, -5), 2) + 5 for j in range(21)]
    agree(got, [plain[row] for row in rows], "encoding", np.float64)
    assert len({round(value, 9) for value in got.tolist()}) == 8


# deberta


@pytest.mark.parametrize(
    ("span", "max_distance", "edges"),
    [
        # 4 * 8^(n / 3): whole numbers, where a rounded logarithm may fall on either side
        (8, 33, [4, 8, 16, 32]),
        (4, 19, [2, 18]),
        # 100^(1/5) = 2.51...
        (12, 601, [6, 15, 37, 95, 238, 600]),
    ],
)
def test_log_buckets_end_where_the_logarithm_says(span, max_distance, edges):
    encoding = ENCODINGS["deberta"].cls(**SIZES, span=span, max_distance=max_distance)
    mid = span // 2
    assert encoding.edges == edges
    assert encoding.boundaries == [mid + 1, edges[-1] + 1]
    for n, edge in enumerate(edges):
        inside, outside = encoding.rows(torch.tensor([edge, edge + 1]), encoding.edges) - span
        assert (inside, outside) == (mid + n, min(mid + n + 1, span - 1))
        inside, outside = encoding.rows(torch.tensor([-edge, -edge - 1]), encoding.edges) - span
        assert (inside, outside) == (-mid - n, -mid - n - 1)
    near = torch.arange(-mid, mid + 1)
    assert torch.equal(encoding.rows(near, encoding.edges), near + span)


def test_released_log_buckets():
    """What version 3's settings give; transformers' float32 logarithm gives the same for all distances up to 3000."""
    encoding = ENCODINGS["deberta"].cls(**SIZES, span=256, max_distance=512)
    rows = encoding.rows(
        torch.tensor([-3000, -512, -511, -200, -129, -128, 0, 127, 130, 300, 505, 506, 3000]), encoding.edges
    )
    assert rows.tolist() == [0, 0, 1, 87, 127, 128, 256, 383, 386, 463, 510, 511, 511]


@pytest.mark.all
def test_layers_share_the_table_and_not_the_maps(tmp_path: Path):
    given = source("deberta", "span=30", "table_norm=true")
    first, second = (group.attention.encoding for group in given.module.encoder.groups)
    assert first.table is second.table
    assert first.table_norm is second.table_norm
    assert first.pos_key.weight is not second.pos_key.weight
    build(given, tmp_path / "m.onnx", recipe())
    model = onnx.load(tmp_path / "m.onnx")
    sizes = [tuple(t.dims) for t in model.graph.initializer]
    assert sizes.count((60, 20)) == 1, "the table is in the file once"


@pytest.mark.parametrize(("name", "terms"), [("deberta", 3), ("transformer-xl", 1), ("shaw-k", 1)])
def test_scale_counts_the_products(name, terms):
    assert source(name).module.encoder.groups[0].attention.scale == (4 * terms) ** -0.5


@pytest.mark.parametrize(
    ("name", "arguments", "boundaries"),
    [
        ("nezha", {"head_size": 4}, [65]),
        ("wav2vec2-bert", {"head_size": 4}, [9, 65]),
        ("wav2vec2-bert", {"head_size": 4, "left": 3, "right": 3}, [4]),
        ("transformer-xl", SIZES, []),
        ("transformer-xl", {**SIZES, "clip": 11}, [12]),
        ("conformer", SIZES, []),
        ("deberta", SIZES, [512]),
    ],
)
def test_limits(name, arguments, boundaries):
    encoding = ENCODINGS[name].cls(**arguments)
    assert (encoding.trained_length, encoding.limit, encoding.boundaries) == (None, None, boundaries)
    assert encoding.shift_invariant


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("nezha", {"head_size": 4, "clip": 0}, "nezha: clip must be a whole number from 1 on, got 0"),
        ("wav2vec2-bert", {"head_size": 4, "left": -1}, "left must be a whole number from 0 on, got -1"),
        ("transformer-xl", {**SIZES, "clip": 0}, r"clip must be a whole number from 1 on \(or none\), got 0"),
        ("conformer", {**SIZES, "heads": 0}, "conformer: heads must be a whole number from 1 on, got 0"),
        ("deberta", {**SIZES, "span": 0}, "deberta: span must be a whole number from 1 on, got 0"),
        (
            "deberta",
            {**SIZES, "span": 3, "max_distance": 9},
            "span must be at least 4 with max_distance, got 3",
        ),
        ("deberta", {**SIZES, "span": 8, "max_distance": 5}, r"max_distance must be above span // 2 \+ 1 = 5, got 5"),
    ],
)
def test_bad_arguments_get_one_sentence(name, arguments, message):
    with pytest.raises(PosexportError, match=message):
        ENCODINGS[name].cls(**arguments)
