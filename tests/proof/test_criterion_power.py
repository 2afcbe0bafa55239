"""What the criterion finds and what it lets pass: graphs with one small mistake are refused, other roundings are not.

A mistake is made in a copy of the definition, which is exported and proven against the right one.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from posexport.nn import projections
from posexport.nn.attention import attend
from posexport.nn.feed_forward import FeedForward
from posexport.proof.report.report import Report
from posexport.sources import builtin
from posexport.sources.source import Source
from tests.parity_models import exported, prove
from tests.small import in_short

pytestmark = pytest.mark.fresh
SIZES = ("hidden=30", "heads=5", "feedforward=37", "vocab=61", "layers=2")
LENGTHS = (2, 17, 65)
#: of a built-in model, what is changed in the copy that is exported
Change = Callable[[nn.Module], None]


def model(name: str, *settings: str) -> Source:
    return builtin.builtin_source(name, task=None, settings_given=(*SIZES, *settings))


def proof(right: Source, graph: onnx.ModelProto, **options: Any) -> Report:
    return prove(right, graph.SerializeToString(), **({"lengths": LENGTHS, "threads": 1} | options))


def broken(right: Source, change: Change, folder: Path) -> onnx.ModelProto:
    """The graph of a copy of the definition with ``change``."""
    changed = copy.deepcopy(right.module)
    with torch.no_grad():
        change(changed)
    return exported(msgspec.structs.replace(right, module=changed), folder)


# -- mistakes in numbers -----------------------------------------------------------------------------------------------


def one_weight(module: nn.Module) -> None:
    """One element, the median in size of a matrix, by a thousandth."""
    (weight,) = (p for name, p in module.named_parameters() if name.endswith("1.feedforward.outer.weight"))
    weight.view(-1)[weight.abs().flatten().argsort()[weight.numel() // 2]] *= 1.001


def one_bias(module: nn.Module) -> None:
    (bias,) = (p for name, p in module.named_parameters() if name.endswith("0.feedforward.outer.bias"))
    bias[3] += 1e-4


def epsilon(module: nn.Module) -> None:
    """PyTorch's default in the place of BERT's 1e-12: too small for the tolerance of a point, found by the median."""
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = 1e-5


def tanh_gelu(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, FeedForward):
            part.activation = lambda x: nn.functional.gelu(x, approximate="tanh")


def encodings(module: nn.Module) -> Iterator[Any]:
    found = {id(part.encoding): part.encoding for part in module.modules() if hasattr(part, "encoding")}
    assert found
    yield from found.values()


def tables(module: nn.Module) -> list[nn.Parameter]:
    found = [p for name, p in module.named_parameters() if name.rpartition(".")[2].startswith("table")]
    assert found
    return found


def table_in(dtype: torch.dtype) -> Change:
    """Every table was stored in half precision."""

    def change(module: nn.Module) -> None:
        for table in tables(module):
            table.copy_(table.to(dtype).to(table.dtype))

    change.__name__ = f"table_in_{dtype}".replace("torch.", "")
    return change


def one_table_row(module: nn.Module) -> None:
    """The row of a near distance, of one layer, by a thousandth."""
    table = tables(module)[-1]
    table[len(table) // 2] *= 1.001


def bucket_edge(module: nn.Module) -> None:
    for encoding in encodings(module):
        # the widest bucket that the lengths reach begins a token late
        at = max(i for i, edge in enumerate(encoding.edges) if edge < max(LENGTHS) - 8)
        encoding.edges[at] += 1


def slopes_swapped(module: nn.Module) -> None:
    for encoding in encodings(module):
        slopes = encoding.slopes
        slopes[-2:] = slopes[:-3:-1]


def slope_in_half(module: nn.Module) -> None:
    for encoding in encodings(module):
        encoding.slopes[:] = [float(np.float16(slope)) for slope in encoding.slopes]


def base(module: nn.Module) -> None:
    for encoding in encodings(module):
        schedule = encoding.schedule
        encoding.schedule = dataclasses.replace(schedule, base=schedule.base + 1)


NUMBERS: list[tuple[str, tuple[str, ...], Change]] = [
    ("encoder-absolute", (), one_weight),
    ("decoder-rope", (), one_weight),
    ("encoder-absolute", (), one_bias),
    ("encoder-absolute", (), epsilon),
    ("decoder-alibi", (), epsilon),
    ("encoder-absolute", (), tanh_gelu),
    ("encoder-absolute", (), table_in(torch.float16)),
    ("encoder-absolute", (), table_in(torch.bfloat16)),
    ("encoder-relative-key", (), table_in(torch.float16)),
    ("encoder-relative-key", (), one_table_row),
    ("encoder-t5", (), table_in(torch.float16)),
    ("encoder-t5", (), bucket_edge),
    ("decoder-t5", (), bucket_edge),
    ("encoder-alibi", (), slopes_swapped),
    ("encoder-alibi", ("factor=0.3",), slope_in_half),
    ("decoder-rope", (), base),
    ("encoder-rope", (), base),
]


#: the smallest mistakes of each kind, which the short run looks for
SMALLEST = {
    ("encoder-absolute", one_weight),
    ("encoder-t5", bucket_edge),
    ("encoder-relative-key", one_table_row),
}


@pytest.mark.all(but=("bucket_edge",))
@pytest.mark.parametrize(
    ("name", "settings", "change"),
    in_short(NUMBERS, lambda name, _, change: (name, change) in SMALLEST),
    ids=[f"{name}-{change.__name__}" for name, _, change in NUMBERS],
)
def test_a_wrong_number_is_found(name: str, settings: tuple[str, ...], change: Change, tmp_path: Path) -> None:
    right = model(name, *settings)
    report = proof(right, broken(right, change, tmp_path))
    assert not report.passed


# -- mistakes in attention ---------------------------------------------------------------------------------------------


@contextmanager
def attention(change: Callable[..., dict[str, Any]]) -> Iterator[None]:
    """In the second layer, attention is called with what ``change`` gives for its arguments."""
    calls = []

    def called(q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Tensor:
        calls.append(1)
        if len(calls) % 2 == 0:
            named |= change(q, k, v, **named)
        return attend(named.pop("q", q), named.pop("k", k), v, **named)

    with mock.patch.object(projections, "attend", called):
        yield
    assert calls


def scale_in_half(*_: Tensor, scale: float, **__: Any) -> dict[str, Any]:
    assert float(np.float16(scale)) != scale
    return {"scale": float(np.float16(scale))}


def causal_off_by_one(*_: Tensor, causal: Any, **__: Any) -> dict[str, Any]:
    queries, keys = causal
    return {"causal": (dataclasses.replace(queries, slots_T=queries.slots_T + 1), keys)}


def mask_off_by_one(*_: Tensor, mask: Tensor, **__: Any) -> dict[str, Any]:
    """The first real key behind padding, or the last before it, is dropped or kept wrongly."""
    return {"mask": torch.cat((mask[..., 1:], mask[..., -1:]), -1)}


def keys_in_half(_: Tensor, k: Tensor, *__: Tensor, **___: Any) -> dict[str, Any]:
    return {"k": k.to(torch.bfloat16).to(k.dtype)}


def one_head_scaled(q: Tensor, *_: Tensor, **__: Any) -> dict[str, Any]:
    factor = torch.ones(q.shape[1], 1, 1)
    factor[2] = 1.001
    return {"q": q * factor}


#: a mask that is off by one is found by far more than the smallest mistakes
SCALED = ("encoder-absolute", scale_in_half)
ATTENTION = [
    ("encoder-absolute", scale_in_half),
    ("encoder-t5", mask_off_by_one),
    ("decoder-absolute", scale_in_half),
    ("decoder-rope", causal_off_by_one),
    ("decoder-rope", mask_off_by_one),
    ("decoder-rope", keys_in_half),
    ("encoder-absolute", one_head_scaled),
]


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "change"),
    in_short(
        ATTENTION,
        lambda name, change: change == causal_off_by_one or (name, change) == SCALED,
    ),
    ids=[f"{name}-{change.__name__}" for name, change in ATTENTION],
)
def test_wrong_attention_of_one_layer_is_found(name: str, change: Any, tmp_path: Path) -> None:
    right = model(name)
    with attention(change):
        graph = exported(right, tmp_path)
    report = proof(right, graph)
    assert not report.passed


@pytest.mark.all
@pytest.mark.parametrize("name", in_short(["encoder-rope", "decoder-rope"], lambda name: name == "decoder-rope"))
def test_positions_of_one_layer_off_by_one_are_found(name: str, tmp_path: Path) -> None:
    """Only queries: a shift of both changes nothing."""
    right = model(name)
    encoding = type(next(encodings(right.module)))
    rotate, calls = encoding.rotate, []

    def shifted(self: Any, x: Tensor, positions: Any, role: str) -> Tensor:
        calls.append(role)
        if role == "query" and calls.count("query") == 2:
            positions = dataclasses.replace(positions, ids_BT=positions.ids_BT + 1)
        return rotate(self, x, positions, role)

    with mock.patch.object(encoding, "rotate", shifted):
        graph = exported(right, tmp_path)
    assert calls.count("query") >= 2
    assert not proof(right, graph).passed


@pytest.mark.all
def test_a_loss_at_every_point_is_found_though_no_point_exceeds_its_tolerance(tmp_path: Path) -> None:
    right = model("encoder-absolute")
    report = proof(right, broken(right, epsilon, tmp_path))
    assert {point.verdict for point in report.points} == {"pass"}
    assert "the median error of last_hidden_state over 13 points (2 to 65) is" in report.describe()


# -- other roundings ---------------------------------------------------------------------------------------------------


def sums_in_halves(module: nn.Module) -> None:
    """Every linear map adds up its inputs in another order, as another processor's kernel does."""

    def halved(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            at = linear.in_features // 2
            found = x[..., at:] @ linear.weight[:, at:].T + x[..., :at] @ linear.weight[:, :at].T
            return found if linear.bias is None else found + linear.bias

        return forward

    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.forward = halved(part)


RIGHT = ["encoder-absolute", "encoder-t5", "encoder-deberta", "decoder-rope", "decoder-cope", "decoder-fire"]


@pytest.mark.all
@pytest.mark.parametrize("name", in_short(RIGHT, lambda name: name == "decoder-cope"))
def test_another_order_of_summation_is_accepted(name: str, tmp_path: Path) -> None:
    right = model(name)
    report = proof(right, broken(right, sums_in_halves, tmp_path))
    assert report.passed, report.describe()


@pytest.mark.all
@pytest.mark.parametrize("lowering", ["formula", "blockwise"])
def test_every_way_to_compute_attention_is_accepted(lowering: str, tmp_path: Path) -> None:
    right = model("encoder-t5")
    report = proof(right, exported(right, tmp_path, lowering), lengths=[17, 129], threads=2)
    assert report.passed, report.describe()


@pytest.mark.all
def test_cope_of_the_default_size_is_accepted(tmp_path: Path) -> None:
    """Refused on some processors by the rule of twice PyTorch's error at each point, by a hair."""
    right = builtin.builtin_source("decoder-cope", task=None, settings_given=())
    report = proof(right, exported(right, tmp_path), lengths=[64], threads=0)
    assert report.passed, report.describe()
