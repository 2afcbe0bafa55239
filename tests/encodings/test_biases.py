"""Biases on the scores: what their oracles cannot say."""

import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from posexport.conversion.export.build import build as export
from posexport.encodings.buckets import bucket
from posexport.encodings.build import build
from posexport.encodings.encoding import ENCODINGS
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.graph.ops.biases import edges, slopes
from posexport.nn.attention import attend
from posexport.sources import builtin
from posexport.sources.example import example
from posexport.sources.source import Source
from tests.small import recipe
from tests.tolerances import agree, agree_each

SIZES = {"hidden": 20, "heads": 5, "head_size": 4, "max_positions": 40}
ONE_LAYER = ("layers=1", "hidden=20", "heads=5", "feedforward=37", "vocab=61", "max_positions=320")


def bias(name: str, length: int, dtype: torch.dtype = torch.float64, first: int = 0, **given: str) -> torch.Tensor:
    """An encoding's scores [heads, length, length], with parameters of size 1."""
    torch.manual_seed(3)
    encoding, _ = build(name, SIZES, given)
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter)
    slots = torch.arange(first, first + length)
    here = Positions(ids_BT=slots[None], slots_T=slots)
    x = torch.zeros(1, 5, length, 4, dtype=dtype)
    with torch.no_grad():
        return encoding.to(dtype).scores(x, x, here, here).dense()[0]


# T5's buckets


def released(distance: torch.Tensor, count: int, max_distance: int, bidirectional: bool) -> torch.Tensor:
    """The released formula, in float32: transformers' `_relative_position_bucket`, restated."""
    side = count // 2 if bidirectional else count
    near = side // 2
    n = distance.abs() if bidirectional else distance.clamp(min=0)
    ratio = torch.log(n.clamp(min=1).float() / near) / math.log(max_distance / near)
    far = (near + (ratio * (side - near)).to(torch.int64)).clamp(max=side - 1)
    later = (distance < 0) * side if bidirectional else 0
    return torch.where(n < near, n, far) + later


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("count", "max_distance"),
    [(32, 128), (320, 800), (64, 256), (12, 40), (4, 2), (6, 1000), (256, 512), (20, 2048), (34, 129)],
)
def test_buckets_are_the_released_ones_at_every_distance(count: int, max_distance: int, bidirectional: bool) -> None:
    if not bidirectional:
        count //= 2
    distance = torch.arange(-5000, 5001)
    found = edges(count // 2 if bidirectional else count, max_distance)
    got = bucket(distance, found, bidirectional=bidirectional)
    assert torch.equal(got, released(distance, count, max_distance, bidirectional))
    assert int(got.max()) == count - 1


def test_edges_are_whole_numbers_where_a_logarithm_is_in_doubt() -> None:
    assert edges(16, 128) == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
    # 27 is exactly a third of the way in logarithms, which no rounded logarithm need say
    assert edges(6, 81 * 3**6) == [1, 2, 3, 3**4, 3**7]


def test_t5_has_no_logarithm_in_its_graph(tmp_path: Path) -> None:
    path = tmp_path / "t5.onnx"
    export(builtin.builtin_source("encoder-t5", task=None, settings_given=ONE_LAYER), path, recipe())
    model = onnx.load(path)
    used = {node.op_type for nodes in (model.graph.node, *(f.node for f in model.functions)) for node in nodes}
    assert "GreaterOrEqual" in used
    assert "Log" not in used


# ALiBi


def test_slopes_are_the_published_ones() -> None:
    assert slopes(8) == [2.0**-n for n in range(1, 9)]
    assert slopes(16)[:3] == [2**-0.5, 2**-1.0, 2**-1.5]
    agree_each(slopes(12), [*slopes(8), *slopes(16)[:8:2]], "rounded", np.float64)
    assert slopes(1) == [2.0**-8]
    assert all(len(slopes(n)) == n == len(set(slopes(n))) for n in range(1, 40))


def test_alibi_variants_are_one_under_a_causal_softmax() -> None:
    causal = torch.full((9, 9), -torch.inf, dtype=torch.float64).triu(1)
    symmetric, forward, bloom = (
        (bias("alibi", 9, first=30, variant=variant) + causal).softmax(-1)
        for variant in ("symmetric", "causal", "bloom")
    )
    agree(forward, symmetric, "same values", np.float64)
    agree(bloom, symmetric, "attention", np.float64)


# KERPLE


@pytest.mark.parametrize(("form", "r1", "r2", "as_if"), [("log", -3, 5, (0.01, 5)), ("log", 2, -1, (2, 0.01))])
def test_kerple_keeps_its_numbers_positive(form: str, r1: float, r2: float, as_if: tuple[float, float]) -> None:
    kerple = ENCODINGS["kerple"].cls(heads=1, form=form).double()
    here = Positions.counted(40)
    x = torch.zeros(1, 1, 40, 4, dtype=torch.float64)
    found = []
    for pair in ((r1, r2), as_if):
        for parameter, value in zip((kerple.r1, kerple.r2), pair, strict=True):
            torch.nn.init.constant_(parameter, value)
        found.append(kerple.scores(x, x, here, here).dense().detach())
    assert torch.equal(*found)
    assert found[0].min() < 0 == found[0].max()


# FIRE


def test_fire_is_a_bias_by_distance_up_to_its_boundary() -> None:
    torch.manual_seed(3)
    fire = ENCODINGS["fire"].cls(heads=5, length=12.5).double()
    assert fire.boundaries == [13]
    here = Positions.counted(14)
    x = torch.zeros(1, 5, 14, 4, dtype=torch.float64)
    scores = fire.scores(x, x, here, here).dense().detach()[0]
    assert torch.equal(scores[:, 1:13, 1:13], scores[:, :12, :12])
    assert (scores[:, 13, 1:] - scores[:, 12, :13]).abs().max() > 1e-4
    # a model whose first layer learned another length says so
    torch.nn.init.constant_(fire.multiplier, -2.0)
    assert fire.boundaries == [26]


# local windows: nothing is NaN, and nothing leaks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_window_of_padding_alone_is_not_nan(dtype: torch.dtype) -> None:
    window, _ = build("local-window", {}, {"left": "2", "right": "1"})
    here = Positions.counted(12)
    q, k, v = torch.randn(3, 1, 5, 12, 4, dtype=dtype, generator=torch.Generator().manual_seed(1)).unbind()
    # rows 0 to 4 see nothing but padding in their windows; then a call of padding alone
    for padded in (6, 12):
        mask = torch.zeros(1, 1, 1, 12, dtype=dtype)
        mask[..., :padded] = torch.finfo(dtype).min
        out = attend(q, k, v, scale=0.5, mask=mask, scores=window.scores(q, k, here, here))
        assert out.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_what_is_outside_the_window_has_no_weight_at_all(dtype: torch.dtype) -> None:
    window, _ = build("local-window", {}, {"left": "2", "right": "1"})
    here = Positions.counted(12)
    q, k = 10 * torch.randn(2, 1, 5, 12, 4, dtype=dtype, generator=torch.Generator().manual_seed(1))
    each = torch.eye(12, dtype=dtype).expand(1, 5, 12, 12)
    weights = attend(q, k, each, scale=0.5, scores=window.scores(q, k, here, here))[0]
    gap = torch.arange(12)[:, None] - torch.arange(12)
    outside = (gap > 2) | (gap < -1)
    assert (weights[:, outside] == 0).all()
    inside = attend(q[:, :, 5:6], k[:, :, 3:7], each[:, :, 3:7], scale=0.5)[0, :, 0]
    agree(weights[:, 5], inside, "operator in half precision", dtype)


@pytest.mark.parametrize("lowering", ["formula", "blockwise"])
def test_padded_outputs_of_a_window_are_finite_in_onnx_runtime(lowering: str, tmp_path: Path) -> None:
    made = builtin.builtin_source("encoder-local-window", task=None, settings_given=(*ONE_LAYER, "left=1", "right=1"))
    path = tmp_path / "m.onnx"
    export(made, path, recipe(lowering=lowering))
    feeds = feeds_of(made, 30)
    feeds["attention_mask"][1, :12] = 0
    feeds["attention_mask"][0, :] = 0
    assert all(np.isfinite(y).all() for y in run(path, feeds))


# TUPE


def test_the_first_token_of_tupe_is_reset() -> None:
    scores = bias("tupe", 17)
    agree(scores[:, 0], scores[:, 0, :1].expand(-1, 17), "encoding", np.float64)
    agree(scores[:, 1:, 0], scores[:, 1:2, 0].expand(-1, 16), "encoding", np.float64)
    assert (scores[:, 0, 0] - scores[:, 1, 0]).abs().min() > 1e-3
    plain = bias("tupe", 17, cls_reset="false")
    assert (plain[:, 0] - plain[:, 0, :1]).abs().max() > 1e-3


def test_attention_scales_by_the_number_of_terms() -> None:
    scales = {
        name: builtin.builtin_source(f"encoder-{name}", task=None, settings_given=())
        .module.encoder.groups[0]
        .attention.scale
        for name in ("tupe", "t5")
    }
    assert scales == {"tupe": (2 * 12) ** -0.5, "t5": 12**-0.5}


def test_tupe_stretches_its_table_and_keeps_the_rest() -> None:
    torch.manual_seed(1)
    trained, _ = build("tupe", SIZES, {})
    longer = trained.interpolated(70)
    assert (longer.trained_length, longer.limit, longer.beyond) == (40, 70, "interpolate")
    assert {40, 70} <= set(longer.boundaries)
    assert all(getattr(longer, name) is getattr(trained, name) for name in ("norm", "query", "key", "bias"))
    assert torch.equal(longer.table[:3], trained.table[:3])
    assert torch.equal(longer.table[-1], trained.table[-1])
    assert longer.table.shape == (71, 20)
    wanted = np.interp(np.linspace(0, 38, 69), np.arange(39), trained.table.detach()[2:, 7].double().numpy())
    agree(longer.table[2:, 7], wanted, "rounded", np.float32)
    assert build("tupe", {**SIZES, "max_positions": 1}, {})[0].interpolated(3).table.shape == (4, 20)
    with pytest.raises(PosexportError, match=r"above the 40 positions .* got 40"):
        trained.interpolated(40)


# settings and limits


@pytest.mark.parametrize(
    ("name", "given", "limit", "boundaries"),
    [
        ("t5", {}, None, [8, 12, 91, 128]),
        ("t5", {"buckets": "4", "max_distance": "50", "bidirectional": "false"}, None, [2, 10, 50]),
        ("alibi", {}, None, []),
        ("kerple", {}, None, []),
        ("sandwich", {}, None, []),
        ("dynamic-bias", {}, None, []),
        ("fire", {"length": "99.5"}, None, [100]),
        ("local-window", {"left": "3", "right": "0"}, None, [1, 4]),
        ("tupe", {}, 40, [8, 40]),
        ("tupe", {"relative": "false"}, 40, [40]),
    ],
)
def test_limits(name: str, given: dict[str, str], limit: int | None, boundaries: list[int]) -> None:
    encoding, _ = build(name, SIZES, given)
    assert encoding.limit == encoding.trained_length == limit
    assert encoding.boundaries == boundaries


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("t5", {"buckets": "7"}, "t5: buckets must be even where bidirectional, got 7"),
        ("t5", {"buckets": "2"}, "t5: buckets must be a whole number from 4 on, got 2"),
        ("t5", {"max_distance": "8"}, "t5: max_distance must be above 8, .* got 8"),
        ("alibi", {"variant": "both"}, "variant must be one of symmetric, causal, bloom, falcon, got 'both'"),
        ("alibi", {"heads": "0"}, "alibi: heads must be a whole number from 1 on, got 0"),
        ("kerple", {"form": "cube"}, "form must be one of log, power, got 'cube'"),
        ("sandwich", {"size": "5"}, "sandwich: size must be even, .* got 5"),
        ("sandwich", {"base": "1"}, "base must be a finite number above 1, got 1.0"),
        ("dynamic-bias", {"depth": "0"}, "dynamic-bias: depth must be a whole number from 1 on, got 0"),
        ("fire", {"length": "0"}, "fire: length must be a finite number above 0, got 0.0"),
        ("fire", {"c": "nan"}, "fire: c must be a finite number above 0, got nan"),
        ("local-window", {"left": "-1"}, "local-window: left must be a whole number from 0 on, got -1"),
        ("tupe", {"heads": "3"}, "tupe: hidden must be a multiple of heads, got hidden=20, heads=3"),
        ("tupe", {"buckets": "9"}, "tupe: buckets must be even, .* got buckets=9"),
    ],
)
def test_bad_settings_get_one_sentence(name: str, given: dict[str, str], message: str) -> None:
    with pytest.raises(PosexportError, match=message):
        build(name, SIZES, given)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("alibi", {"variant": "both"}, "alibi: variant must be symmetric, causal, bloom or falcon, got 'both'"),
        ("kerple", {"form": "cube"}, "kerple: form must be log or power, got 'cube'"),
        ("tupe", {"hidden": 20, "trained": 513}, "tupe: trained must be from 1 to max_positions=512, got 513"),
    ],
)
def test_constructors_check_what_a_python_file_may_give(name: str, arguments: dict, message: str) -> None:
    with pytest.raises(PosexportError, match=message):
        ENCODINGS[name].cls(heads=5, **arguments)


# the graph


def feeds_of(made: Source, length: int) -> dict[str, np.ndarray]:
    sizes = {"batch_size": 2, "sequence_length": length}
    return {name: tensor.numpy() for name, tensor in example(made.inputs, sizes).items()}


def run(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feeds)


@pytest.mark.all
@pytest.mark.parametrize(
    "name_and_settings",
    [("fire", "length=50"), ("tupe",), ("alibi", "variant=bloom"), ("dynamic-bias", "layer_norm=true")],
    ids=lambda x: x[0],
)
def test_lowerings_agree_with_pytorch_past_a_block(name_and_settings: tuple[str, ...], tmp_path: Path) -> None:
    name, *settings = name_and_settings
    made = builtin.builtin_source(f"encoder-{name}", task=None, settings_given=(*ONE_LAYER, *settings))
    feeds = feeds_of(made, 269)
    feeds["attention_mask"][1, 200:] = 0
    with torch.no_grad():
        want = made.module.double()(**{n: torch.from_numpy(a) for n, a in feeds.items()})[0].numpy()
    made.module.float()
    for lowering in ("formula", "blockwise"):
        path = tmp_path / f"{lowering}.onnx"
        export(made, path, recipe(lowering=lowering))
        got = run(path, feeds)[0]
        agree(got[0], want[0], "attention", np.float32)
        agree(got[1, :200], want[1, :200], "attention", np.float32)
