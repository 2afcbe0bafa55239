"""The proof: right models pass, wrong ones fail and the report says how."""

from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import onnx
import pytest
import torch

from posexport.base.spec import BATCH, ENCODER_SEQUENCE, PAST, SEQUENCE, TOTAL, InputSpec, Limits, OutputSpec, Promises
from posexport.errors import PosexportError
from posexport.proof import criterion
from posexport.proof.grid.grid import grid, lengths_of, points_at_end, splits, with_ends
from posexport.proof.grid.inputs import DRAWS, draw, inputs_of, keep_mask
from posexport.proof.grid.point import GridPoint, available, needed_bytes
from posexport.proof.references.definition import MOST, baseline_errors, more_draws
from posexport.proof.report.point_table import to_text
from posexport.proof.report.points import Point
from posexport.proof.report.report import Report
from posexport.sources.source import Source
from tests.parity_models import (
    Kept,
    Stateful,
    dataclass_limit,
    exported,
    numbered_by_ids,
    prove,
    source,
    with_weights,
    wrapped,
)

TOKENS = InputSpec(name="input_ids", dtype="int64", axes=[BATCH, SEQUENCE], role="tokens", size=61, padding=7)
MASK = InputSpec(name="attention_mask", dtype="int64", axes=[BATCH, SEQUENCE], role="mask")
STATES = InputSpec(name="encoder_hidden_states", dtype="float32", axes=[BATCH, ENCODER_SEQUENCE, 5], role="values")
HIDDEN: list[str | int] = [BATCH, SEQUENCE, 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parity")


@pytest.fixture(scope="module")
def absolute(folder: Path) -> tuple[Source, onnx.ModelProto]:
    right = source()
    return right, exported(right, folder)


def proven(right: Source, model: onnx.ModelProto, **options: object) -> Report:
    return prove(right, model.SerializeToString(), threads=1, **options)  # type: ignore[arg-type]


# -- the criterion -----------------------------------------------------------------------------------------------------


def test_error_is_relative_to_the_largest_value_that_is_not_padding() -> None:
    truth = np.zeros((2, 3, 4))
    truth[0, 0, 0], truth[1, 2, 3] = 4.0, 100.0
    keep = np.array([[True, True, False], [True, True, False]])
    y = truth.astype(np.float32)
    y[0, 1, 2] += 1.0
    y[1, 2] = 1e6  # padded: it is not looked at
    assert criterion.measure(y, truth, HIDDEN, keep) == (0.25, 4.0, "")
    assert criterion.measure(y, truth, HIDDEN, None).error > 1e3


def test_sequence_axis_may_stand_anywhere() -> None:
    truth = np.ones((2, 4, 3))
    y = truth.copy()
    y[:, :, 2] = 5.0
    keep = np.array([[True, True, False]] * 2)
    assert criterion.measure(y, truth, [BATCH, 4, SEQUENCE], keep).error == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_fails_even_where_padded(bad: float) -> None:
    truth = np.ones((1, 2, 4))
    y = truth.copy()
    y[0, 1, 0] = bad
    found = criterion.measure(y, truth, HIDDEN, np.array([[True, False]]))
    assert found.error == np.inf
    assert "not finite" in found.note


def test_minus_infinity_is_right_where_the_truth_is_the_same() -> None:
    truth = np.array([[[4.0, -np.inf, 2.0], [-np.inf, -np.inf, 1.0]]])
    y = truth.astype(np.float32)
    assert criterion.measure(y, truth, HIDDEN, None) == (0.0, 4.0, "")
    y[0, 1, 2] = 1.5
    assert criterion.measure(y, truth, HIDDEN, None) == (0.125, 4.0, "")
    for other in (-1e30, np.inf, np.nan):
        wrong = y.copy()
        wrong[0, 0, 1] = other
        assert criterion.measure(wrong, truth, HIDDEN, None).error == np.inf
    assert criterion.measure(y, -truth, HIDDEN, None).error == np.inf


def test_a_reference_that_says_nothing_fails() -> None:
    zero = np.zeros((1, 2, 4))
    assert criterion.measure(zero, zero, HIDDEN, None) == (0, 0, "")  # a proof of zeros alone fails
    assert criterion.measure(zero + 1e-9, zero, HIDDEN, None).error == np.inf
    assert criterion.measure(zero + np.nan, zero + np.nan, HIDDEN, None).error == np.inf
    assert "shape" in criterion.measure(np.ones((1, 2, 5)), zero, HIDDEN, None).note


def test_tolerance_is_8_times_pytorchs_error_or_the_floor() -> None:
    eps = float(np.finfo(np.float32).eps)
    assert criterion.tolerance("fp32", "y", 0.0) == 64 * eps
    assert criterion.tolerance("fp32", "y", 10 * eps) == 80 * eps
    assert criterion.tolerance("fp16", "y", 0.0) == 4 * float(np.finfo(np.float16).eps)
    assert criterion.tolerance("bf16", "y", 0.0) == 4 * torch.finfo(torch.bfloat16).eps


def test_pytorchs_error_is_taken_from_more_draws_where_outputs_are_small() -> None:
    model = SimpleNamespace(inputs=[TOKENS, MASK], outputs=[OutputSpec(name="y", axes=[BATCH, SEQUENCE, 3])])
    small, large = GridPoint(batch=3, length=5), GridPoint(batch=3, length=2000)
    assert more_draws(small, model) == MOST
    assert more_draws(large, model) == 0
    calls = []

    def definition(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        calls.append(feeds["input_ids"].shape)
        return [np.repeat(feeds["input_ids"][:, :, None] + 1.0, 3, axis=2)]

    def rounded(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        # one row of all that were drawn has an error, so that a few points would miss it
        (y,) = definition(feeds)
        y[40] *= 1.001
        return [y]

    (found,) = baseline_errors(small, model, definition, rounded)
    assert 0.0005 < found < 0.0015
    assert set(calls) == {(3 * MOST, 5)}
    calls.clear()
    # a module that fills up its inputs holds much at any size
    same = baseline_errors(small, model, definition, definition, held=lambda: 60 << 20)
    assert same == [0.0]
    assert set(calls) == {(3 * 4, 5)}


def test_inputs_avoid_outputs_that_are_small_by_luck() -> None:
    model = SimpleNamespace(inputs=[TOKENS], outputs=[OutputSpec(name="y", axes=[BATCH])])

    def definition(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [feeds["input_ids"][:, 0].astype(np.float64) - 30]

    point = GridPoint(batch=1, length=2)
    chosen = abs(definition(inputs_of(point, model, definition))[0][0])
    drawn = [abs(definition(draw(point, [TOKENS], variant))[0][0]) for variant in range(DRAWS[1])]
    assert chosen == max(drawn) > np.median(drawn)


# -- the grid ----------------------------------------------------------------------------------------------------------


def test_default_grid_is_what_the_contract_says() -> None:
    points = grid(Limits(trained_length=512, max_length=512, boundaries=[100]), [TOKENS, MASK])
    lengths = [1, 2, 17, 63, 64, 65, 99, 100, 101, 129, 257, 512]
    assert sorted({p.length for p in points if not p.must_be_rejected}) == lengths
    assert [(p.batch, p.length) for p in points if p.must_be_rejected] == [(1, 513), (3, 513), (1, 1024)]
    at = {length: {(p.batch, p.padding) for p in points if p.length == length} for length in lengths}
    alone = {(1, "none"), (1, "right"), (1, "left")}
    assert at[17] == alone | {(3, "none"), (3, "right"), (3, "left"), (3, "ragged")}
    assert at[129] == alone | {(3, "ragged")}
    assert at[2] == {(1, "none"), (3, "ragged")}
    assert at[100] == at[512] == {(3, "ragged")}
    assert {p.padding for p in points if p.length == 1} == {"none"}


def test_a_long_length_has_one_row() -> None:
    points = grid(Limits(trained_length=9000, max_length=9000, boundaries=[4096]), [TOKENS, MASK])
    long = [(p.batch, p.length, p.padding) for p in points if p.length > 2048 and not p.must_be_rejected]
    assert long == [(1, 4096, "none"), (1, 4097, "none"), (1, 9000, "none")]


def test_the_end_of_a_long_context_is_reached_by_decode_steps() -> None:
    limits = Limits(trained_length=131072, max_length=131072, boundaries=[8192], kv_cache=True)
    points = points_at_end(limits, lambda point: point.length <= 40_000)
    assert [(p.length, p.cached, p.tokens) for p in points] == [
        (8192, 8191, 1),
        (8192, 8192 - 129, 129),
        (32768, 32767, 1),
        (32768, 32768 - 129, 129),
    ]
    assert [p.length for p in points_at_end(Limits(kv_cache=True), lambda _: True)] == [8192, 8192]
    past = InputSpec(name="past", dtype="float32", axes=[BATCH, 5, PAST, 7], role="cache")
    feeds = draw(points[0], [TOKENS, InputSpec(name="m", dtype="int64", axes=[BATCH, TOTAL], role="mask"), past])
    assert [feeds[name].shape for name in ("input_ids", "m", "past")] == [(1, 1), (1, 8192), (1, 5, 8191, 7)]
    assert feeds["m"].all()


def test_every_point_of_a_decoder_can_be_drawn() -> None:
    """Also of one that reads an encoder's states, as T5's, which has no limit either."""
    mask = InputSpec(name="m", dtype="int64", axes=[BATCH, TOTAL], role="mask")
    past = InputSpec(name="past", dtype="float32", axes=[BATCH, 5, PAST, 7], role="cache")
    limits = Limits(kv_cache=True)
    for inputs, ends in (([TOKENS, mask, past], 2), ([TOKENS, mask, past, STATES], 0)):
        points = with_ends(grid(limits, inputs), limits, inputs, lambda _: True)
        assert sum(point.cached > 0 for point in points) == ends
        for point in points:
            draw(point, inputs)
    # of images beside the text, whose sizes decode steps behind a long context have too
    pixels = InputSpec(name="pixels", dtype="float32", axes=[BATCH, "num_images", 3], role="values")
    inputs, limits = [TOKENS, mask, past, pixels], Limits(kv_cache=True, proof_sizes=[{"num_images": 2}])
    points = with_ends(grid(limits, inputs), limits, inputs, lambda _: True)
    assert [draw(point, inputs)["pixels"].shape for point in points if point.cached] == [(1, 2, 3)] * 2


def test_grid_beyond_the_trained_length() -> None:
    clipped = Limits(trained_length=40, max_length=None, beyond="clip", boundaries=[40])
    assert {39, 40, 41, 80, 257} < set(lengths_of(clipped))
    assert not any(p.must_be_rejected for p in grid(clipped, [TOKENS, MASK]))
    stretched = Limits(trained_length=40, max_length=100, beyond="interpolate", boundaries=[40])
    assert {40, 41, 70, 100} < set(lengths_of(stretched))
    assert max(lengths_of(stretched)) == 100
    assert [p.length for p in grid(stretched, [TOKENS]) if p.must_be_rejected] == [101, 101, 200]


def test_grid_of_given_lengths_and_of_a_second_sequence() -> None:
    points = grid(
        Limits(max_length=9, limited_axes=[SEQUENCE, ENCODER_SEQUENCE]), [TOKENS, MASK, STATES], lengths=[8, 10]
    )
    assert {(p.length, p.must_be_rejected) for p in points} == {(8, False), (10, True)}
    assert {p.encoder_length for p in points if p.batch == 1} == {9}
    assert {p.encoder_length for p in points if p.batch == 3} == {5}
    default = grid(Limits(max_length=9, limited_axes=[SEQUENCE, ENCODER_SEQUENCE]), [TOKENS, MASK, STATES])
    assert [p.encoder_length for p in default if p.must_be_rejected] == [9, 5, 9, 10]
    with pytest.raises(PosexportError, match="--length 2 or more"):
        grid(Limits(min_length=2), [TOKENS], lengths=[1])


@pytest.mark.parametrize("padding", ["none", "right", "left", "ragged"])
def test_drawn_inputs_are_padded_as_the_point_says(padding: str) -> None:
    point = GridPoint(batch=3, length=17, padding=padding)  # type: ignore[arg-type]
    feeds = draw(point, [TOKENS, MASK])
    mask, ids = feeds["attention_mask"], feeds["input_ids"]
    assert np.array_equal(mask, keep_mask(point))
    assert ((ids == TOKENS.padding) == (mask == 0)).all()
    assert ids.max() < 61
    assert (mask.sum(1) >= 1).all()
    first, last = mask[:, 0].tolist(), mask[:, -1].tolist()
    assert {"none": 0 not in first + last, "right": last == [0] * 3, "left": first == [0] * 3}.get(padding, True)
    if padding == "ragged":
        assert len({int(n) for n in mask.sum(1)}) == 3
        assert mask[0].all()
        assert not mask[1, -1]
        assert not mask[2, 0]
    again = draw(point, [TOKENS, MASK])
    assert all(np.array_equal(feeds[name], again[name]) for name in feeds)


def test_an_axis_that_nobody_varies_is_an_error() -> None:
    odd = msgspec.structs.replace(TOKENS, axes=[BATCH, "height"])
    with pytest.raises(PosexportError, match="height"):
        draw(GridPoint(batch=1, length=2), [odd])


# -- right models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["encoder-relative-key", "encoder-nope", pytest.param("encoder-shaw-kv", marks=pytest.mark.all)]
)
def test_a_right_model_passes(name: str, folder: Path) -> None:
    right = source(name)
    report = proven(right, exported(right, folder), lengths=[1, 2, 17, 20])
    assert report.passed, report.describe()
    assert report.wrong_provider == []
    held = {item.name for item in report.invariants if item.verdict == "pass"}
    assert "left padding changes nothing" in held
    order = "outputs follow the order of tokens" if name == "encoder-nope" else "outputs depend on the order of tokens"
    assert order in held


def test_the_whole_grid_passes_and_is_summed_up(absolute: tuple[Source, onnx.ModelProto]) -> None:
    seen: list[tuple[int, int, str]] = []
    report = proven(*absolute, progress=lambda *step: seen.append(step))
    assert report.passed, report.describe()
    counts = report.summary()
    # lengths 1, 2, 17, 19, 20: two points at 1 and 2, seven at 17, one at 19, four at 20; 21 and 40 refused
    assert (counts.points, counts.passed, counts.rejected, counts.skipped) == (19, 16, 3, 0)
    assert counts.complete
    assert 0 < counts.worst_error <= counts.worst_tolerance
    proving = [done for done, total, what in seen if what.startswith("proving") and total == 100]
    assert len(proving) == 16
    assert proving == sorted(proving)
    assert "left padding changes nothing" not in {item.name for item in report.invariants}
    assert Report.from_json(report.to_json()) == report


def test_tolerance_comes_from_all_points_of_a_length(absolute: tuple[Source, onnx.ModelProto]) -> None:
    right, _ = absolute
    # a sum with a large number: PyTorch's own error is far above the floor, and differs from point to point
    shifted = wrapped(right, change=lambda y, _: ((y[0].sum(-1, keepdim=True) * 0.37 + 1e4) * y[0] - 1e4 * y[0],))
    report = proven(shifted, exported_copy(shifted), lengths=[17])
    errors = [p.baseline_error for p in report.points if p.baseline_error is not None]
    assert len(errors) == 7
    assert max(errors) > 16 * 2.0**-23
    assert len(set(errors)) > 1
    (worst,) = {p.worst_baseline_error for p in report.points}
    assert worst is not None
    assert worst >= max(errors)
    assert {p.tolerance for p in report.points} == {8 * worst}


def exported_copy(made_from: Source) -> onnx.ModelProto:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        return exported(made_from, Path(name))


@pytest.mark.all
@pytest.mark.parametrize("task", ["question-answering", "sequence-classification"])
def test_outputs_of_few_numbers_pass(task: str, folder: Path) -> None:
    settings = ("labels=1",) if task == "sequence-classification" else ()
    right = source("encoder-learned", *settings, task=task)
    report = proven(right, exported(right, folder), lengths=[1, 2, 17])
    assert report.passed, report.describe()


@pytest.mark.all
def test_cross_attention_is_proven_with_a_second_length(folder: Path) -> None:
    right = source("encoder-relative-key", "cross_attention=true")
    report = proven(right, exported(right, folder), lengths=[2, 17])
    assert report.passed, report.describe()
    assert {p.encoder_length for p in report.points} == {5, 20}
    left = [item.verdict for item in report.invariants if item.name == "left padding changes nothing"]
    assert left == ["pass"]


@pytest.mark.all
def test_numbering_by_ids_is_no_failure(folder: Path) -> None:
    right = numbered_by_ids(source())
    report = proven(right, exported(right, folder), lengths=[1, 17])
    assert report.passed, report.describe()
    content = [item for item in report.invariants if item.name == "padding contents change nothing"]
    assert [item.verdict for item in content] == ["skipped"]


def test_a_definition_that_keeps_state_gets_fresh_copies(absolute: tuple[Source, onnx.ModelProto]) -> None:
    right, model = absolute
    report = proven(msgspec.structs.replace(right, module=Stateful(right.module).eval()), model, lengths=[2, 17])
    assert report.stateful
    assert report.passed, report.describe()
    assert not proven(right, model, lengths=[2]).stateful


def test_points_too_large_for_memory_are_skipped_with_the_reason(absolute: tuple[Source, onnx.ModelProto]) -> None:
    right, model = absolute
    most = needed_bytes(GridPoint(batch=3, length=2), right.outputs, 5)
    report = proven(right, model, lengths=[2, 17], memory_limit=most)
    skipped = [p for p in report.points if p.verdict == "skipped"]
    assert {p.length for p in skipped} == {17}
    assert all("of memory" in p.note for p in skipped)
    assert report.passed
    assert not report.summary().complete
    assert "skipped: length 17, batch 1, no padding: needs about" in to_text(report)
    nothing = proven(right, model, lengths=[17], memory_limit=1)
    assert not nothing.passed
    assert nothing.describe().startswith("no point was checked: needs about")


def test_available_memory_is_plausible() -> None:
    assert 2**20 < available() < 2**50


# -- wrong models ------------------------------------------------------------------------------------------------------


def failing_lengths(report: Report) -> set[int]:
    return {p.length for p in report.points if p.verdict == "fail"}


def test_a_wrong_table_row_fails_from_its_length_on(absolute: tuple[Source, onnx.ModelProto]) -> None:
    def change(table: np.ndarray) -> np.ndarray:
        table[18] = -table[18]
        return table

    right, model = absolute
    report = proven(right, with_weights(model, "encoding.table", change))
    assert not report.passed
    assert failing_lengths(report) == {19, 20}
    assert "(right at length 1, 2, 17)" in report.describe()
    assert "starts in table" in report.describe()
    assert "row 18" in report.describe()


def test_a_table_in_half_precision_fails(absolute: tuple[Source, onnx.ModelProto]) -> None:
    right, model = absolute
    report = proven(right, with_weights(model, "encoding.table", lambda t: t.astype(np.float16)), lengths=[1, 17])
    assert failing_lengths(report) == {1, 17}
    assert "exceeds" in report.describe()


def test_a_frozen_length_fails(absolute: tuple[Source, onnx.ModelProto]) -> None:
    right, model = absolute
    frozen = onnx.ModelProto.FromString(model.SerializeToString())
    for value in frozen.graph.input:
        value.type.tensor_type.shape.dim[1].dim_value = 17
    report = proven(right, frozen, lengths=[2, 17])
    assert failing_lengths(report) == {2}
    assert "ONNX Runtime failed" in report.describe()


def test_a_length_frozen_in_arithmetic_fails(folder: Path) -> None:
    right = source(task="sentence-embedding")
    # the mean over tokens, with the number of tokens that was traced
    wrong = wrapped(right, change=lambda y, mask: (y[0], (y[0] * mask[:, :, None]).sum(1) / 17))
    report = proven(right, exported(wrong, folder), lengths=[2, 17])
    assert {p.output for p in report.points if p.verdict == "fail"} == {"sentence_embedding"}


@pytest.mark.all
def test_padding_that_is_attended_to_fails_where_there_is_padding(
    absolute: tuple[Source, onnx.ModelProto], folder: Path
) -> None:
    right, _ = absolute
    wrong = wrapped(right, before=lambda ids, mask, types: (ids, mask.clamp(min=1), types))
    report = proven(right, exported(wrong, folder), lengths=[2, 17])
    assert {p.padding for p in report.points if p.verdict == "fail"} == {"right", "left", "ragged"}
    assert {p.padding for p in report.points if p.verdict == "pass"} == {"none"}
    broken = {item.name for item in report.invariants if item.verdict == "fail"}
    assert broken >= {"right padding changes nothing", "padding contents change nothing"}


@pytest.mark.all
def test_rows_that_are_mixed_up_fail_in_batches(absolute: tuple[Source, onnx.ModelProto], folder: Path) -> None:
    right, _ = absolute
    wrong = wrapped(right, change=lambda y, _: (y[0].flip(0),))
    report = proven(right, exported(wrong, folder), lengths=[17])
    assert {p.batch for p in report.points if p.verdict == "fail"} == {3}
    assert "batch neighbours do not change a row" in [i.name for i in report.invariants if i.verdict == "fail"]


def test_a_missing_guard_fails(folder: Path) -> None:
    right = source("encoder-relative-key")
    unguarded = msgspec.structs.replace(right, limits=dataclass_limit(right, None))
    report = proven(right, exported(unguarded, folder), lengths=[20, 21])
    assert failing_lengths(report) == {21}
    assert "it must be rejected (input longer than 20 positions): no length guard" in report.describe()


@pytest.mark.all
def test_another_failure_is_no_guard(folder: Path) -> None:
    right = source("encoder-learned")
    unguarded = msgspec.structs.replace(right, limits=dataclass_limit(right, None))
    model = exported(unguarded, folder)
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[1].dim_value = 20
    report = proven(right, model, lengths=[20, 21])
    assert failing_lengths(report) == {21}
    assert "without the length guard's message" in report.describe()


def test_an_output_that_is_not_a_number_fails(absolute: tuple[Source, onnx.ModelProto]) -> None:
    right, model = absolute
    wrong = with_weights(model, "groups.0.feedforward.outer.bias", lambda bias: bias * np.nan)
    report = proven(right, wrong, lengths=[1, 2])
    assert failing_lengths(report) == {1, 2}
    assert {p.error for p in report.points} == {None}
    assert "not finite" in report.describe()
    assert Report.from_json(report.to_json()) == report
    assert msgspec.json.decode(msgspec.json.encode(report.summary()))["worst_error"] > 1e300


def test_a_graph_without_its_positions_breaks_the_control(folder: Path) -> None:
    """The values of both are right: only the claim that there are positions is wrong."""
    right = source("encoder-nope")
    claimed = msgspec.structs.replace(right, promises=source("encoder-absolute").promises)
    report = proven(claimed, exported(right, folder), lengths=[17])
    assert all(p.verdict == "pass" for p in report.points)
    assert not report.passed
    assert "the positions are not in the graph" in report.describe()


def test_a_model_of_another_source_is_refused(absolute: tuple[Source, onnx.ModelProto]) -> None:
    _, model = absolute
    with pytest.raises(PosexportError, match="lacks end_logits, start_logits"):
        proven(source(task="question-answering"), model)


def test_a_module_that_returns_no_tuple_is_named() -> None:
    tokens = InputSpec(name="input_ids", dtype="int64", axes=[BATCH, SEQUENCE], role="tokens", size=61)
    outputs = [OutputSpec(name="y", axes=[BATCH, SEQUENCE, 20])]
    kept_source = msgspec.structs.replace(
        source(),
        module=Kept(lambda x: x).eval(),
        inputs=[tokens],
        outputs=outputs,
        encoding=None,
        promises=Promises(),
    )
    model = exported_copy(kept_source)
    assert proven(kept_source, model, lengths=[1, 17]).passed
    kept_source.module.forward = lambda input_ids: kept_source.module.token(input_ids)  # type: ignore[method-assign]
    with pytest.raises(PosexportError, match="Tensor; a tuple of 1 was declared"):
        proven(kept_source, model, lengths=[1])


# -- reports -----------------------------------------------------------------------------------------------------------


def a_point(**changes: object) -> Point:
    point = Point(
        batch=1,
        length=17,
        padding="none",
        provider="cpu",
        precision="fp32",
        output="y",
        error=1e-7,
        baseline_error=1e-7,
        worst_baseline_error=2e-7,
        tolerance=1.9e-6,
        verdict="pass",
    )
    return msgspec.structs.replace(point, **changes)


def test_strays_are_failures_that_name_the_node() -> None:
    report = Report(
        scope="grid", provider="cuda", precision="fp32", points=[a_point()], wrong_provider=["a node: softmax_3"]
    )
    assert not report.passed
    assert "softmax_3" in report.describe()


def test_table_shows_the_worst_of_each_padding() -> None:
    points = [
        a_point(),
        a_point(batch=3, error=3e-7),
        a_point(padding="right", error=5e-6, verdict="fail"),
        a_point(length=21, error=None, baseline_error=None, tolerance=None, verdict="rejected", output=""),
    ]
    report = Report(scope="grid", provider="cpu", precision="fp32", points=points)
    text = to_text(report)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == ["length", "no padding", "right", "worst", "PyTorch fp32", "tolerance", "verdict"]
    assert rows[1] == ["17", "3.0e-07", "5.0e-06", "5.0e-06", "2.0e-07", "1.9e-06", "FAIL"]
    assert rows[2] == ["21", "rejected", "-", "", "", "", "rejected"]
    assert max(len(line) for line in text.splitlines() if line.startswith(("|", "+"))) <= 100
    assert "FAILED: y at length 17, batch 1, right padding: error 5.0e-06 exceeds 1.9e-06" in text


def test_a_damaged_report_is_one_sentence() -> None:
    with pytest.raises(PosexportError, match="not a parity report"):
        Report.from_json(b'{"scope": "grid"}')


@pytest.mark.parametrize("length", [160, 257, 384, 512])
def test_a_call_that_is_computed_in_tiles_comes_behind_a_cache_too(length: int) -> None:
    """A bias whose tiles counted from the cache's start would be wrong nowhere else."""
    assert any(calls[0] > 0 and max(calls[1:]) > 128 for calls in splits(length))
