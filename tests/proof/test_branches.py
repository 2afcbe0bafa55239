"""Every branch of a graph runs in the proof: how it is seen, what is added for it, and what is said where it cannot."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import ModelProto, NodeProto

from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.graph.lowering.toeplitz import ToeplitzBias
from posexport.proof.branches import coverage
from posexport.proof.branches.coverage import cover
from posexport.proof.branches.probes import Branch, Watched, has_branches
from posexport.proof.grid.grid import grid
from posexport.proof.grid.point import Budget, GridPoint, needed_bytes
from posexport.run.providers import make_session
from posexport.sources import builtin
from tests.small import in_short

SIZES = ("layers=2", "hidden=20", "heads=5", "feedforward=37", "vocab=61")

#: an If in a Scan in a function that is called twice, and an If whose branch holds another
NESTED = """
<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
main (float[n] x, float[n] y) => (float[n] z)
{
  a = own.Steps(x)
  b = own.Steps(y)
  zero = Constant<value_float = 0.0>()
  least = ReduceMin<keepdims = 0>(x)
  most = ReduceMax<keepdims = 0>(x)
  negative = Less(least, zero)
  [outer] z = If(negative) <
    then_branch = below () => (c) {
      positive = Greater(most, zero)
      [inner] c = If(positive) <
        then_branch = mixed () => (d) { d = Add(a, b) },
        else_branch = all () => (e) { e = Sub(a, b) }
      >
    },
    else_branch = above () => (f) { f = Mul(a, b) }
  >
}
<domain: "own", opset_import: ["" : 18]>
Steps (v) => (w)
{
  big = Constant<value_float = 10.0>()
  [steps] w = Scan<num_scan_inputs = 1, body = each (float s) => (float t) {
    large = Greater(s, big)
    [clip] t = If(large) <then_branch = cut () => (cut_value) { cut_value = Identity(big) },
      else_branch = keep () => (kept_value) { kept_value = Identity(s) }>
  }>(v)
}
"""


def watched(model: ModelProto) -> Watched:
    names = [value.name for value in model.graph.input], [value.name for value in model.graph.output]
    return Watched(model.SerializeToString(), inputs=names[0], outputs=names[1], threads=1)


@pytest.mark.parametrize(
    ("x", "y", "ran"),
    [
        ([1, 2], [3], {"clip else", "outer else", "steps body"}),
        ([1, 20], [3], {"clip else", "clip then", "outer else", "steps body"}),
        ([-1, 2], [3, 30], {"clip else", "clip then", "outer then", "inner then", "steps body"}),
        ([-1, -2], [3, 3], {"clip else", "outer then", "inner else", "steps body"}),
    ],
)
def test_what_ran_is_seen_in_functions_and_bodies(x: list[float], y: list[float], ran: set[str]) -> None:
    model = onnx.parser.parse_model(NESTED)
    onnx.checker.check_model(model)
    feeds = {name: np.array(np.broadcast_to(v, 2), np.float32) for name, v in (("x", x), ("y", y))}
    runner = watched(model)
    assert len(runner.branches) == 7
    want = make_session(model.SerializeToString(), threads=1).run(None, feeds)
    np.testing.assert_array_equal(runner(feeds)[0], want[0])
    assert {f"{b.node} {b.body.removesuffix('_branch')}" for b in runner.ran} == ran
    assert runner.ran <= runner.branches


def control_flow(model: ModelProto) -> list[NodeProto]:
    def inside(nodes: "list[NodeProto]") -> "list[NodeProto]":
        found = []
        for node in nodes:
            bodies = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            found += [node] * bool(bodies)
            for body in bodies:
                assert len(body.node) == 0 or body.node[0].name
                found += inside(list(body.node))
        return found

    return inside([*model.graph.node, *(node for function in model.functions for node in function.node)])


@pytest.mark.all
@pytest.mark.parametrize("name", in_short(["decoder-t5", "encoder-shaw-kv"], "encoder-shaw-kv".__eq__))
@pytest.mark.parametrize("inline", [False, True])
def test_control_flow_has_names_that_are_unique_in_the_file(name: str, inline: bool, tmp_path: Path) -> None:
    lowering = "formula" if inline else "auto"
    convert(name, tmp_path / "b", ConvertOptions(settings=SIZES, verify=False, inline=inline, lowering=lowering))
    model = onnx.load(tmp_path / "b" / "model.onnx")
    nodes = control_flow(model)
    assert bool(nodes) is not inline
    names = Counter(node.name for node in nodes)
    assert "" not in names
    assert set(names.values()) <= {1}


MPNET = ("layers=2", "hidden=48", "heads=12", "feedforward=24", "vocab=61")


@pytest.mark.all
def test_an_encoder_of_real_size_is_proven_where_it_is_tiled(tmp_path: Path) -> None:
    """With MPNet's heads and length biases are tiled from a batch on that no point of the grid has."""
    done = convert("encoder-mpnet", tmp_path / "b", ConvertOptions(settings=(*MPNET, "max_positions=512"), threads=1))
    assert done.report is not None
    assert done.report.passed, done.report.describe()
    assert not done.report.unreached
    assert len(done.report.coverage) == 7
    tiled = next(run for run in done.report.coverage if "Bias/bias" in run.branch and "else" in run.branch)
    assert tiled.covered_by == "length 512, batch 6, ragged padding"
    assert {(p.length, p.batch) for p in done.report.points if p.verdict == "pass"} >= {(512, 6)}


@pytest.mark.parametrize("name", in_short(["encoder-t5", "decoder-alibi"], lambda name: name == "encoder-t5"))
def test_a_branch_that_is_wrong_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ToeplitzBias.of_tile

    def wrong(self: ToeplitzBias, qpos: ir.Value, kpos: ir.Value) -> ir.Value:
        """The bias of the first tile, whichever tile it is."""
        unshifted = replace(self, first_query=self.g.slice(qpos, [0], [1], 0))
        return right(unshifted, qpos, kpos)

    monkeypatch.setattr(ToeplitzBias, "of_tile", wrong)
    done = convert(name, tmp_path / "b", ConvertOptions(settings=SIZES, threads=1))
    assert not done.good
    assert not (tmp_path / "b").exists()
    assert done.report is not None
    failed = [point for point in done.report.points if point.verdict == "fail"]
    assert failed
    # at one tile nothing moves: only the points with more of them can see it
    assert all(point.length > 128 for point in failed)


def test_a_model_of_few_tokens_is_proven_where_padding_is_left_out(tmp_path: Path) -> None:
    """A third of 20 tokens is less padding than its graph leaves out, and its first token is read by its place."""
    source = "tests/golden/distilbert-forsequenceclassification"
    found = convert(source, tmp_path / "out", ConvertOptions(target="cpu", max_length=20, threads=1))
    assert found.manifest is not None
    assert found.manifest.proven, found.verdict
    assert any("row_by_row" in run.branch for run in found.manifest.coverage)


def test_a_branch_that_needs_too_much_memory_is_said_to_be_unproven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "room", lambda _: 1 << 26)
    done = convert("encoder-t5", tmp_path / "b", ConvertOptions(settings=SIZES, threads=1))
    assert done.report is not None
    assert done.report.passed
    assert done.good
    assert done.report.unreached
    assert all("MiB" in branch.note and "needs" in branch.note for branch in done.report.unreached)
    assert done.manifest is not None
    assert not done.manifest.proven
    assert done.manifest.coverage == done.report.coverage
    last = done.to_text().splitlines()[-1]
    assert f"proven except {done.report.unreached[0].branch} (needs more than 64 MiB" in last


def test_chosen_lengths_claim_no_branch(tmp_path: Path) -> None:
    done = convert("encoder-t5", tmp_path / "b", ConvertOptions(settings=SIZES, threads=1, lengths=(17,)))
    assert done.report is not None
    assert done.report.coverage == []


@pytest.mark.all
@pytest.mark.parametrize(
    "name",
    in_short(
        ["encoder-absolute", "decoder-mpnet", "encoder-tupe", "decoder-relative-key"],
        lambda name: name == "decoder-relative-key",
    ),
)
def test_a_branch_that_no_input_reaches_is_not_written(name: str, tmp_path: Path) -> None:
    """Tables of 128 positions end where the first tile does; those of 140 need a second, which is never full."""
    for positions, tiles in ((128, False), (140, True)):
        target = tmp_path / str(positions)
        convert(name, target, ConvertOptions(settings=(*SIZES, f"max_positions={positions}"), verify=False))
        source = builtin.builtin_source(name, task=None, settings_given=(*SIZES, f"max_positions={positions}"))
        nodes = control_flow(onnx.load(target / "model.onnx"))
        assert any(node.op_type == "Scan" for node in nodes) is tiles
        points = grid(source.limits, source.inputs)
        budget = Budget(outputs=source.outputs, heads=5, limit=1 << 33)
        found = cover(source, target / "model.onnx", points, provider="cpu", threads=1, budget=budget)
        assert not found.lacking
        assert set(found.reached) == set(found.branches)
        assert bool(found.branches) is tiles or name.startswith("decoder")


def test_skipped_points_reach_nothing() -> None:
    source = builtin.builtin_source("encoder-nope", task=None, settings_given=SIZES)
    point = grid(source.limits, source.inputs)[0]
    branch = Branch("node", "then_branch")
    found = coverage.Coverage([branch], reached={branch: point})
    assert found.runs()[0].covered_by == str(point)
    (lost,) = found.runs([point])
    assert lost.covered_by is None
    assert lost.note == f"{point} was skipped"


@pytest.mark.parametrize(("kind", "within"), [("python", True), ("built-in", False)])
def test_a_module_s_branches_are_looked_for_in_little_memory(kind: str, within: bool) -> None:
    """Of a checkpoint all that fits is tried."""
    source = msgspec.structs.replace(builtin.builtin_source("encoder-t5", task=None, settings_given=SIZES), kind=kind)
    budget = Budget(outputs=source.outputs, heads=5, limit=24 << 30)
    points = grid(source.limits, source.inputs)
    watched = SimpleNamespace(branches=set(), ran=set())
    search = coverage._Search(source, watched, points, budget, lambda *_: None)  # type: ignore[arg-type]
    grown = list(search._growth(next(search._kinds())))
    assert (max(needed_bytes(point, source.outputs, 5) for point in grown) <= 2 << 30) is within


@pytest.mark.parametrize(("kind", "longest"), [("python", 2048), ("checkpoint", 1 << 15)])
def test_what_a_call_holds_decides_for_a_module(kind: str, longest: int) -> None:
    """Features count, and attention that is not over tokens; up to 2 GiB."""
    source = msgspec.structs.replace(builtin.builtin_source("encoder-nope", task=None, settings_given=SIZES), kind=kind)
    budget = Budget(outputs=[], heads=1, limit=64 << 30, call_bytes=lambda sizes: sizes["sequence_length"] << 20)
    points = grid(source.limits, source.inputs)
    watched = SimpleNamespace(branches=set(), ran=set())
    search = coverage._Search(source, watched, points, budget, lambda *_: None)  # type: ignore[arg-type]
    assert max(point.length for point in search._growth(next(search._kinds()))) == longest


def test_tokens_and_a_large_image_are_tried_together() -> None:
    """Scores of cross attention are of both; images are as large as their own scores let them be."""
    source = builtin.builtin_source("encoder-nope", task=None, settings_given=SIZES)
    points = [
        GridPoint(batch=1, length=length, sizes=(("height", side), ("width", side)))
        for length, side in ((1, 4), (129, 16), (17, 32))
    ]
    watched = SimpleNamespace(branches=set(), ran=set())
    budget = Budget(outputs=[], heads=5, limit=64 << 30)
    search = coverage._Search(source, watched, points, budget, lambda *_: None)  # type: ignore[arg-type]
    (largest,) = {(point.length, dict(point.sizes)["height"]) for point in search._kinds()}
    assert largest == (129, 32)
    patches = source.limits.elements_per_token
    for point in search._more_images():
        sides = dict(point.sizes)
        assert point.length == 1
        assert 4 * 8 * 5 * point.batch * (sides["height"] * sides["width"] / patches) ** 2 <= 2 << 30


class Tiled:
    """A graph with a branch from ``least`` tokens on."""

    branch = Branch("tiles", "body")

    def __init__(self, least: int) -> None:
        self.least, self.tried = least, list[int]()
        self.branches, self.ran = {self.branch}, set[Branch]()

    def __call__(self, feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        self.tried.append(feeds["input_ids"].shape[1])
        if self.tried[-1] >= self.least:
            self.ran.add(self.branch)
        return [np.zeros((1, 1, 1))]


@pytest.mark.parametrize(
    ("least", "easily", "found"), [(1400, 1, 1408), (1100, 1, 1152), (2000, 1, 2048), (1400, 1 << 40, 2048)]
)
def test_a_branch_is_proven_at_a_length_that_needs_less(least: int, easily: int, found: int) -> None:
    """Where the first doubled length that runs it needs much memory, of those up to it."""
    source = builtin.builtin_source("encoder-t5", task=None, settings_given=SIZES)
    budget = Budget(outputs=source.outputs, heads=5, easily=easily, limit=1 << 40)
    tiled = Tiled(least)
    points = [point for point in grid(source.limits, source.inputs) if point.length < 300]
    result = coverage._Search(source, tiled, points, budget, lambda *_: None).run()  # type: ignore[arg-type]
    assert [(point.length, point.batch) for point in result.added] == [(found, 1)]
    assert result.reached == {Tiled.branch: result.added[0]}
    assert max(tiled.tried) == 2048
    assert len([n for n in tiled.tried if 1024 < n < 2048]) == (0 if easily > 1 else 4)


def test_a_graph_without_branches_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watched, "of", lambda *_, **__: pytest.fail("a session that watches nothing"))
    done = convert("encoder-nope", tmp_path / "b", ConvertOptions(settings=SIZES, threads=1, lowering="formula"))
    assert done.report is not None
    assert done.report.passed
    assert done.report.coverage == []
    assert has_branches(onnx.parser.parse_model(NESTED).SerializeToString())
    scan = onnx.parser.parse_model(NESTED)
    del scan.graph.node[5:]
    assert has_branches(scan.SerializeToString())  # in a function
    del scan.functions[:]
    assert not has_branches(scan.SerializeToString())


@pytest.mark.parametrize(("of_row", "most"), [(1, 1 << 10), (100 << 20, 16)])
def test_more_rows_of_large_features_are_not_tried(of_row: int, most: int) -> None:
    source = builtin.builtin_source("encoder-nope", task=None, settings_given=SIZES)
    watched = SimpleNamespace(branches=set(), ran=set())
    point = GridPoint(batch=1, length=16)
    budget = Budget(outputs=[], heads=1, limit=4 << 30, call_bytes=lambda sizes: of_row * sizes["batch_size"])
    search = coverage._Search(source, watched, [point], budget, lambda *_: None)  # type: ignore[arg-type]
    assert max(row.batch for row in search._more_rows(point)) == most
