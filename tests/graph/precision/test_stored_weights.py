"""What a proof reads of quantized weights, piece by piece: the file, the check, and the definition that reads them."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from posexport.base.spec import InputSpec
from posexport.base.targets.precisions import PrecisionOptions
from posexport.base.targets.target import Target
from posexport.graph.precision.apply import apply
from posexport.proof.quantized.match import SLACK, Matched, Matcher, check, factor_of
from posexport.proof.quantized.module import AsStored, Form, forms
from posexport.proof.quantized.module import rounded as rounded_activations
from posexport.proof.quantized.read import read
from posexport.proof.quantized.records import FloatProduct, Rounding, Stored, StoredError, Use
from tests.text_graphs import Inputs, answers, calibration, graph, matrices, rows
from tests.tolerances import agree, agree_each

K, N, VOCAB = 70, 22, 301
SCHEMES = {
    "int8": (PrecisionOptions(precision="int8"), "rows", (-128, 127)),
    "int8 weights": (PrecisionOptions(precision="int8", weight_only=True), "blocks", (0, 255)),
    "int4": (PrecisionOptions(precision="int4"), "blocks", (0, 15)),
    "int4 hqq": (PrecisionOptions(precision="int4", quantizer="hqq"), "blocks", (0, 15)),
    "int4 gptq": (PrecisionOptions(precision="int4", quantizer="gptq", calibrate="sha256 of texts"), "blocks", (0, 15)),
}


def matrix(*shape: int) -> np.ndarray:
    """The same for the same shape."""
    drawn: np.ndarray = matrices(7)(*shape)
    return drawn


TARGETS = [Target("cpu", 23), Target("portable", 21)]


def stored_as(scheme: str, target: Target, w: np.ndarray, b: np.ndarray) -> ir.Model:
    model = graph(f"HEAD g (float[r, {K}] x, float w, float b) => (float z) {{ z = Gemm(x, w, b) }}",
                  target.opset, w=w, b=b)  # fmt: skip
    seen = (calibration(matrix(90, K)),) if "gptq" in scheme else ()
    apply(model, rows(K), target, SCHEMES[scheme][0], *seen)
    return model


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_read_is_what_onnx_runtime_multiplies_by(scheme: str, target: Target) -> None:
    """Rows with one 1 are rounded nowhere: the product is the weight's row."""
    w, b = matrix(K, N) + (0.7 if "hqq" in scheme else 0), matrix(N)
    model = stored_as(scheme, target, w, b)
    (use,), plain = read(ir.to_proto(model).SerializeToString(), [])
    for (z,) in answers(model, x=np.eye(K, dtype=np.float32)):
        agree(z - b, use.stored.real().T, "model in float32", np.float32)
    _, kind, (lowest, highest) = SCHEMES[scheme]
    assert [rounding.kind for rounding in use.roundings] == [kind]
    assert use.stored.highest - use.stored.lowest == highest - lowest
    assert use.stored.whole[:].min() >= use.stored.lowest
    assert use.stored.whole[:].max() <= use.stored.highest
    assert use.places == [place for place, node in enumerate(model.graph) if "MatMul" in node.op_type or
                          node.op_type == "Gemm"]  # fmt: skip
    (bias,) = use.biases
    assert np.array_equal(bias, b)
    assert not plain
    matched = Matcher({"w": w}).match(use.stored)
    check(matched)
    ((candidate, channels, found),) = matched.pieces
    assert (candidate.name, candidate.transposed) == ("w", True)
    assert channels.tolist() == found.tolist() == list(range(N))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_a_table_that_is_read_is_what_onnx_runtime_looks_up(scheme: str, target: Target) -> None:
    text = "HEAD g (int64[b, t] ids, float table) => (float z) { z = Gather(table, ids) }"
    model, table = graph(text, target.opset, table=(table := matrix(VOCAB, K))), table
    ids = Inputs([InputSpec(name="ids", dtype="int64", axes=["rows", "tokens"], role="tokens", size=VOCAB)])
    apply(model, ids, target, SCHEMES[scheme][0])
    (use,), _ = read(ir.to_proto(model).SerializeToString(), [])
    assert use.lookup
    for (z,) in answers(model, ids=np.arange(VOCAB)[None]):
        agree(z[0], use.stored.real(), "rounded", np.float32)
    assert (use.stored.lowest, use.stored.highest) in ((-128, 127), (0, 255))
    check(Matcher({"table": table}).match(use.stored))


def test_quantized_constants_that_nothing_reads_are_refused() -> None:
    text = "HEAD g (float[r, 3] x) => (float y) {{ c = Constant <value = {} {{1, 2, 3}}> ()  d = Cast <to = 1> (c) " \
           " y = Add(x, d) }}"  # fmt: skip
    with pytest.raises(StoredError, match="c is quantized, and no product or lookup that is known reads it"):
        read(ir.to_proto(graph(text.format("int8[1, 3]"))).SerializeToString(), [])
    assert read(ir.to_proto(graph(text.format("int8[3]"))).SerializeToString(), []) == ([], [])


def test_one_scale_for_all_rows_is_refused() -> None:
    model = stored_as("int8", TARGETS[0], matrix(K, N), matrix(N))
    (highest,) = [node for node in model.graph if node.op_type == "ReduceMax"]
    highest.resize_inputs(1)
    with pytest.raises(StoredError, match="w_int8 is multiplied by activations whose scale is not each row's own"):
        read(ir.to_proto(model).SerializeToString(), [])


# -- the check -------------------------------------------------------------------------------------


def rounded(w: np.ndarray, *, bits: int, size: int, zero: float = 0.0) -> Stored:
    """``w`` [N, K] to nearest, symmetric about ``zero``."""
    n, k = w.shape
    blocks = -(-k // size)
    padded = np.zeros((n, blocks * size))
    padded[:, :k] = w
    padded = padded.reshape(n, blocks, size)
    extreme = np.take_along_axis(padded, np.abs(padded).argmax(-1)[..., None], -1)[..., 0]
    half = 1 << (bits - 1)
    scale = -extreme / half
    whole = np.clip(np.rint(padded / scale[..., None]), -half, half - 1) + zero
    whole = whole.reshape(n, -1)[:, :k].astype(np.int16)
    return Stored("w_int", whole, scale, np.full(scale.shape, zero), size, int(zero) - half, int(zero) + half - 1)


def checked(stored: Stored, w: np.ndarray) -> None:
    ((candidate, *_),) = [(each,) for each in Matcher({"w": w})._candidates[w.shape[1]] if not each.transposed]
    channels = np.arange(len(w))
    check(Matched(stored, [(candidate, channels, channels)], np.ones(w.shape[1])))


@pytest.mark.parametrize("size", [32, K])
def test_one_value_a_step_away_is_found(size: int) -> None:
    w = matrix(N, K)
    stored = rounded(w, bits=8, size=size, zero=128)
    checked(stored, w)
    whole = stored.whole.copy()
    whole[5, 40] += 1 if whole[5, 40] < stored.highest - 1 else -1
    with pytest.raises(StoredError, match=r"1 of 1540 values are further .* first in channel 5 at 40, by [01]\.\d+ st"):
        checked(replace(stored, whole=whole), w)
    # an end of the range is no excuse for a value within it
    for end in (stored.lowest, stored.highest):
        whole[5, 40] = end
        with pytest.raises(StoredError, match="values are further"):
            checked(replace(stored, whole=whole), w)


def test_in_4_bits_a_value_of_the_other_sign_is_found() -> None:
    """One step may be rounding by second order, which moves values; an end of the range for the other is not."""
    w = matrix(N, K)
    stored = rounded(w, bits=4, size=32, zero=8)
    checked(stored, w)
    whole = stored.whole.copy()
    at = int(np.abs(w[5, :32]).argmax())
    assert whole[5, at] == stored.lowest
    whole[5, at] = stored.highest
    with pytest.raises(StoredError, match=f"1 of 1540 values are further .* first in channel 5 at {at}, by 15 steps"):
        checked(replace(stored, whole=whole), w)


@pytest.mark.parametrize(
    ("blocks", "wrong"), [("one", None), ("one exchanged", "of 1540 values"), ("all of a place", "of 1540 values")]
)
def test_by_second_order_few_blocks_are_far_and_look_like_their_parameter(blocks: str, wrong: str | None) -> None:
    w = matrix(N, K)
    stored = rounded(w, bits=4, size=32, zero=8)
    whole, far = stored.whole.astype(np.int64), slice(None) if blocks == "all of a place" else 5
    moved = whole[far, :32] + np.where(np.arange(32) % 2, 2, -2)
    whole[far, :32] = np.clip(moved, 0, 15) if "exchanged" not in blocks else np.roll(whole[far, :32], 1)
    other = replace(stored, whole=whole.astype(stored.whole.dtype))
    if wrong is None:
        checked(other, w)
        return
    with pytest.raises(StoredError, match=wrong):
        checked(other, w)


def test_scales_of_16_bits_may_add_what_they_err() -> None:
    w = matrix(N, K)
    stored = rounded(w, bits=8, size=32, zero=128)
    half = replace(stored, scale=stored.scale.astype(np.float16).astype(np.float64))
    checked(half, w)
    off = half.whole.astype(np.int64)
    off[5, 40] += 1 if off[5, 40] < 250 else -1
    with pytest.raises(StoredError, match="1 of 1540 values"):
        checked(replace(half, whole=off), w)


def test_free_zero_points_must_be_nearer_than_symmetric_ones() -> None:
    w = matrix(N, K) + 3
    blocks = rounded(w, bits=4, size=32, zero=8)
    low, high = w[3, :32].min(), w[3, :32].max()
    for widening, good in ((1.0, True), (4.0, False)):
        scale, zero, whole = blocks.scale.copy(), blocks.zero.copy(), blocks.whole.copy()
        scale[3, 0] = widening * (high - low) / 15
        zero[3, 0] = np.rint(-low / scale[3, 0])
        whole[3, :32] = np.clip(np.rint(w[3, :32] / scale[3, 0]) + zero[3, 0], 0, 15)
        stored = replace(blocks, scale=scale, zero=zero, whole=whole)
        if good:
            checked(stored, w)
        else:
            with pytest.raises(StoredError, match="block 0 of channel 3 is further from w than rounding to nearest"):
                checked(stored, w)


def test_second_order_has_the_scale_of_the_largest_and_bounded_errors() -> None:
    w = matrix(N, K)
    right = rounded(w, bits=4, size=32, zero=8)
    rng = np.random.default_rng(0)
    moved = np.clip(right.whole + rng.choice([-1, 0, 1], right.whole.shape, p=[0.2, 0.6, 0.2]), 0, 15)
    checked(replace(right, whole=moved.astype(np.int16)), w)
    alone = right.whole.copy()
    alone[3, 5] += 2 if alone[3, 5] < 8 else -2
    for wrong in (
        replace(right, whole=alone),  # one value of a matrix that was rounded to nearest
        replace(right, whole=moved, scale=right.scale * (1 + 1e-4)),  # not that of the largest value
        replace(right, whole=np.clip(right.whole + 1, 0, 15)),  # all to one side
        replace(right, whole=np.clip(right.whole + rng.choice([-3, 3], right.whole.shape), 0, 15)),  # too far
    ):
        with pytest.raises(StoredError, match="values are further from w than rounding errs"):
            checked(wrong, w)


# -- the definition --------------------------------------------------------------------------------


class Products(nn.Module):
    """One weight as it is, transposed, and rows of it, both ways."""

    def __init__(self, w: np.ndarray) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(w).double())

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [F.linear(x, self.w), x @ self.w.T, F.linear(x, self.w[3:9]), x @ self.w[3:9].T, y @ self.w]


def form_of(stored: Stored, *roundings: Rounding) -> Form:
    form = Form("w", len(stored.whole), False, False, np.ones(stored.whole.shape[1]), list(roundings))
    channels = np.arange(len(stored.whole))
    form.pieces.append((Use(stored, False), channels, channels))
    return form


def test_products_with_a_weight_and_with_rows_of_it_read_what_is_stored() -> None:
    w, x, y = matrix(N, K), torch.from_numpy(matrix(5, K)).double(), torch.from_numpy(matrix(5, N)).double()
    stored = rounded(w, bits=4, size=32, zero=8)
    module = AsStored(Products(w), {("w", False): form_of(stored, Rounding())})
    real = torch.from_numpy(stored.real())
    whole, transposed, some, some_transposed, other = module(x=x, y=y)
    for got in (whole, transposed):
        agree(got, x @ real.T, "operator", np.float64)
    for got in (some, some_transposed):
        agree(got, x @ real[3:9].T, "operator", np.float64)
    agree(other, y @ torch.from_numpy(w).double(), "operator", np.float64)  # [K, N] is another product


def test_each_product_rounds_as_its_node_and_further_ones_as_the_last() -> None:
    """A graph computes once what the definition computes twice."""
    w, x = matrix(N, K), torch.from_numpy(matrix(5, K)).double()
    stored = rounded(w, bits=4, size=32, zero=8)
    module = AsStored(Products(w), {("w", False): form_of(stored, Rounding(), Rounding("blocks", size=32))})
    real = torch.from_numpy(stored.real())
    first, *others = module(x=x, y=torch.zeros(1, N, dtype=torch.float64))[:4]
    agree(first, x @ real.T, "operator", np.float64)
    blocks = torch.nn.functional.pad(x, (0, 26)).reshape(5, 3, 32)
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    near = ((blocks / scale).round() * scale).reshape(5, 96)[:, :K]
    for got, part in zip(others, (real, real[3:9], real[3:9]), strict=True):
        agree(got, near @ part.T, "operator", np.float64)


def test_a_parameter_that_products_read_in_float_too() -> None:
    w = matrix(N, K)
    for parameter, transposed in ((w[:, None, :], False), (w.T[:, None], True)):
        form = form_of(rounded(w, bits=4, size=32, zero=8), Rounding("blocks", size=32))
        form.places, form.transposed = [4], transposed
        form.with_float(parameter, [FloatProduct(2, w), FloatProduct(7, -w)])
        assert (form.places, [each.kind for each in form.roundings]) == ([2, 4], ["float", "blocks"])


def test_rows_of_a_parameter_that_are_nowhere_are_named() -> None:
    w = matrix(N, K)
    stored = rounded(w, bits=4, size=32, zero=8)
    candidate = Matcher({"w": w})._candidates[K][0]
    rows_there = np.arange(N - 2)
    use = Use(stored, False)
    matched = Matched(stored, [(candidate, rows_there, rows_there)], np.ones(K))
    with pytest.raises(StoredError, match="w_int has w without its row 20 and 1 more"):
        forms([(use, matched)], lambda _: set())
    with pytest.raises(StoredError, match=r"w_int has w without its row 21$"):
        forms([(use, matched)], lambda _: {20})
    assert forms([(use, matched)], lambda _: {20, 21}).keys() == {("w", False)}
    agree_each(forms([(use, matched)], lambda _: {20, 21})["w", False].matrix(torch.float64)[:20],
               stored.real()[:20], "same values", np.float64)  # fmt: skip


def test_a_factor_is_told_where_all_it_multiplies_is_a_few_steps() -> None:
    """Rounding moves such values by half of themselves, and their ratio with them."""
    w = matrix(N, K)
    w[:, 3] *= 0.01
    factor = np.exp2(np.arange(K) % 3 - 1.0)
    scale = np.abs(w * factor).max(1, keepdims=True) / 127
    stored = Stored("w_int", np.rint(w * factor / scale), scale, np.zeros(scale.shape), K, -128, 127)
    matched = Matcher({"w": w}).match(stored)
    matched.factor = factor_of(matched)
    check(matched)
    away = np.abs(stored.steps(np.arange(N), w.astype(np.float64) * matched.factor))
    assert away.max() <= 0.5 + SLACK


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ties_go_either_way_in_float32_s_runs(dtype: torch.dtype) -> None:
    """Also of numbers whose last bits are zeros: -63.5 steps are -63 as often as -64."""
    sides = set()
    for seed in range(40):
        x = torch.randn(5, K, generator=torch.Generator().manual_seed(seed)).to(dtype).float()
        x[:, 0], x[:, 1] = x.abs().amax(-1) * 2, -x.abs().amax(-1)
        sides.add(round(float((rounded_activations(x, Rounding("rows", 128)) / (x[:, :1] / 127))[0, 1])))
    assert sides == {-63, -64}
