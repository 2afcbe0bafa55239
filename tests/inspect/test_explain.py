"""``posexport explain``: no kernel's time is counted twice, each is counted where it belongs, and nothing is hidden."""

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from click.testing import CliRunner
from rich.console import Console

from posexport.base.spec import CAPACITY, ENCODER_SEQUENCE, PAST, SEQUENCE, TOTAL, InputSpec, Limits
from posexport.cli import group
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.inspect.explain import feeds
from posexport.inspect.explain.explanation import BUDGET, _decisions, explain
from posexport.inspect.explain.origins import FUNCTION, MODULES, REST, TABLES, Origin, Origins, positional
from posexport.inspect.explain.profile import Event, alone, calls, costs
from posexport.inspect.explain.records import CostRow, Decision, Explanation, GraphCost, notes, shown, summary
from posexport.run.bundle.manifest import MANIFEST, LoweringSpec, PassSpec
from tests.tolerances import agree

TINY = ("hidden=60", "heads=5")
ROLES = {"ids": "tokens", "mask": "mask", "x": "values"}

#: counts from a shape, turns x by a cosine, keeps a mask, reshapes x; a call of a function and one within it
GRAPH = """<ir_version: 10, opset_import: ["" : 18, "posexport" : 1]>
g (int64[b, t] ids, int64[b, t] mask, float[b, t] x) => (float[b, t] y, float[b, t] z)
<int64 zero = {0}, int64 one = {1}, int64[1] all = {-1}, float small = {0.5}>
{
  size = Shape <start = 1, end = 2> (ids)
  t = Squeeze (size, all0)
  all0 = Constant <value_ints = [0]> ()
  at = Range (zero, t, one)
  at32 = Cast <to = 1> (at)
  angle = Mul (at32, small)
  cos = Cos (angle)
  kept = Cast <to = 1> (mask)
  turned = Mul (x, cos)
  doubled = Add (turned, turned)
  flat = Reshape (x, all)
  y = Mul (doubled, kept)
  z = posexport.SomeAttention (x, at)
}
<domain: "posexport", opset_import: ["" : 18]> SomeScores (q, p) => (s) { pf = CastLike (p, q)  s = Add (q, pf) }
<domain: "posexport", opset_import: ["" : 18, "posexport" : 1]> SomeAttention (q, p) => (o)
  { s = posexport.SomeScores (q, p)  o = Softmax (s) }
"""


def model() -> ir.Model:
    lines = GRAPH.splitlines()  # in ONNX's order: what a node reads comes before it
    at = next(i for i, line in enumerate(lines) if "all0 =" in line)
    lines[at - 1], lines[at] = lines[at], lines[at - 1]
    return ir.from_onnx_text("\n".join(lines))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Bundles by source and options, made when they are asked for."""
    made: dict[tuple[Any, ...], Path] = {}

    def bundle(source: str, *settings: str, layers: int = 2, **options: Any) -> Path:
        key = (source, settings, layers, *options.items())
        if key not in made:
            made[key] = tmp_path_factory.mktemp("explain") / source
            convert(
                source,
                made[key],
                ConvertOptions(settings=(*TINY, f"layers={layers}", *settings), verify=False, **options),
            )
        return made[key]

    return bundle


def test_positions_are_what_was_counted() -> None:
    found = {node.outputs[0].name for node in positional(model().graph, ROLES)}
    assert found == {"at", "at32", "angle", "cos", "turned", "doubled"}
    # a table for positions that are given; the mask alone is none, but counting it is
    graph = onnx.parser.parse_graph(
        "g (int64[b, t] at, int64[b, t] mask, float[b, t] x, float[9, 2] table) => (float[b, t, 2] y) "
        "{ row = Gather (table, at)  axis = Constant <value_int = 1> ()  low = Not (mask)  count = CumSum (low, axis)"
        "  next = Add (count, axis)  hidden = Mul (count, low)"
        "  y = Add (x, low) }"
    )
    roles = {"at": "positions", "mask": "mask", "x": "values"}
    found = {node.outputs[0].name for node in positional(ir.from_proto(graph), roles)}
    assert found == {"row", "count", "next"}


def test_origins_are_read_from_names_that_onnx_runtime_makes() -> None:
    found = model()
    nodes = {node.outputs[0].name: node for node in found.graph}
    nodes["y"].metadata_props["pkg.torch.onnx.class_hierarchy"] = "['M', 'models.Attention', 'aten.mul']"
    nodes["kept"].metadata_props[FUNCTION] = "SomeScores"
    origins = Origins(found, ROLES)
    assert len({node.name for node in found.graph}) == len(found.graph)

    def of(name: str, around: Origin | None = None, op_type: str = "Mul") -> Origin:
        return origins.of(name, op_type, around)

    assert of(nodes["angle"].name) == Origin("positions", TABLES)
    assert of(f"{nodes['flat'].name}/SomeFusion/") == REST
    assert of(nodes["y"].name) == Origin("attention", MODULES)
    assert of(nodes["kept"].name) == Origin("positions", "SomeScores")  # inlined in the file: it was told
    bodies = {function.name: list(function) for function in found.functions.values()}
    scores, attention = Origin("positions", "SomeScores"), Origin("attention", "SomeAttention")
    assert of(f"_inlfunc_SomeScores_{bodies['SomeScores'][1].name}/MatMulScaleFusion/") == scores
    assert of(f"_inlfunc_SomeAttention_token_3_{bodies['SomeAttention'][1].name}") == attention
    for name, share in (
        ("CausalMaskedBias", "attention"),
        ("PairMaskedBias", "attention"),
        ("CausalMaskedDistanceBias", "positions"),
        ("HalfRotation", "positions"),
    ):
        assert of(f"_inlfunc_{name}_posexport@{name}@12") == Origin(share, name)
    # names that fusions lose
    assert of("SkipLayerNormalization_token_1") == REST
    assert of("fused", attention) == attention
    assert of("fused", op_type="MultiHeadAttention") == Origin("attention", "MultiHeadAttention")
    assert (origins.count("SomeAttention"), origins.count("SomeScores"), origins.count("Mul")) == (1, 1, 0)
    assert origins.callers["SomeScores"] == ["SomeAttention"]


def events() -> list[dict[str, Any]]:
    """Two calls of a Scan with two steps in an attention, and one node after it; microseconds."""

    def node(name: str, op_type: str, ts: int, dur: int) -> dict[str, Any]:
        args = {"op_name": op_type, "provider": "CPUExecutionProvider"}
        return {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur, "args": args}

    inner, outer = "_inlfunc_SomeScores_posexport@SomeScores@1", "_inlfunc_SomeAttention_posexport@SomeAttention@1"
    found: list[dict[str, Any]] = [{"cat": "Session", "name": "session_initialization", "ts": 0, "dur": 90}]
    for start, extra in ((100, 0), (400, 6)):
        found += [
            node(inner, "MatMul", start + 10, 20 + extra),
            node("Add_7", "Add", start + 45, 5),
            node(inner, "MatMul", start + 55, 20 + extra),
            node("Add_7", "Add", start + 90, 5),
            node(outer, "Scan", start + 5, 95),
            node("posexport@10@3", "Gemm", start + 100, 40),
            {"cat": "Session", "name": "model_run", "ts": start, "dur": 150, "args": {}},
        ]
    return found


def test_bodies_are_not_counted_twice(tmp_path: Path) -> None:
    origins = Origins(model(), ROLES)
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(events()))
    found = calls(profile, origins)
    assert [call.us for call in found] == [150, 150]
    # the time before the Scan's first and between its kernels is nobody's
    assert [sum(run.us for run in call.runs) for call in found] == [20 + 5 + 20 + 5 + 40, 26 + 5 + 26 + 5 + 40]
    by_type = {cost.op_type: cost for cost in costs(found)}
    assert {name: (cost.count, cost.us) for name, cost in by_type.items()} == {
        "Scan": (1, 0),
        "MatMul": (2, 46),  # the median of 40 and 52
        "Add": (2, 10),
        "Gemm": (1, 40),
    }
    assert by_type["MatMul"].origin == Origin("positions", "SomeScores")
    assert by_type["Add"].origin == by_type["Scan"].origin == Origin("attention", "SomeAttention")
    assert by_type["Gemm"].origin == REST


def test_a_kernel_after_a_body_is_not_in_it() -> None:
    origins = Origins(model(), ROLES)
    decoded = msgspec.convert(events()[1:7], type=list[Event])
    shifted = [*decoded[:5], msgspec.structs.replace(decoded[5], name="Gemm_9_kernel_time")]
    runs = alone(sorted(shifted, key=lambda e: (e.ts, -e.dur)), origins)
    assert [run.origin for run in runs if run.op_type == "Gemm"] == [REST]


def test_a_profile_without_kernels_is_an_error(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text('[{"cat": "Session", "name": "model_run", "ts": 1, "dur": 2, "args": {}}]')
    with pytest.raises(PosexportError, match="names no kernels"):
        calls(profile, Origins(model(), ROLES))


def rows(part: GraphCost) -> dict[str, CostRow]:
    return {row.name: row for row in part.rows}


def counts(row: CostRow) -> dict[str, int]:
    return {kernel.op_type: kernel.count for kernel in row.kernels}


@pytest.mark.all
def test_an_encoder_by_blocks(bundles: Any) -> None:
    found = explain(bundles("encoder-relative-key", "max_positions=300"), length=300, batch=2, threads=1)
    assert found.call == "batch 2, length 300"
    (part,) = found.parts
    (name,) = (decision.node_type for decision in part.decisions if "RelativeKey" in decision.node_type)
    assert next(d.nodes for d in part.decisions if d.node_type == name) == 2
    scores, attention = rows(part)["WholeRelativeKeyScores"], rows(part)[name]
    assert (scores.share, scores.nodes, scores.within) == ("positions", 2, [name])
    assert (attention.share, attention.nodes, attention.within) == ("attention", 2, [])
    assert attention.ms > 0
    assert scores.ms > 0
    # 300 queries are three blocks in each of two layers
    assert sum(kernel.count for kernel in scores.kernels if kernel.op_type.endswith("MatMul")) == 6
    agree(sum(part.fraction(share) for share in ("positions", "attention", "rest")), 1, "operator", np.float64)
    agree(part.kernels_ms, sum(row.ms for row in part.rows), "operator", np.float64)
    assert part.kernels_ms < part.profiled_ms
    assert part.runs == BUDGET.runs
    projections = sum(
        n for op_type, n in counts(rows(part)[REST.of]).items() if "MatMul" in op_type or "Gemm" in op_type
    )
    assert projections in range(2, 13)  # six a layer, or fewer that are packed
    assert {k.provider for row in part.rows for k in row.kernels} == {"CPUExecutionProvider"}


def test_no_positions_no_share(bundles: Any) -> None:
    (part,) = explain(bundles("encoder-nope", layers=1), length=100, threads=1).parts
    assert part.fraction("positions") < 0.02
    assert part.fraction("attention") > 0.05


def test_a_graph_without_functions(bundles: Any) -> None:
    (part,) = explain(bundles("encoder-relative-key", "max_positions=300", inline=True), length=100, threads=1).parts
    assert len(part.decisions) == 1
    assert part.decisions[0].nodes == 2
    attention = rows(part)[part.decisions[0].node_type]
    assert counts(attention)["Softmax"] == 2
    assert sum(n for op_type, n in counts(rows(part)["RelativeKeyScores"]).items() if op_type.endswith("MatMul")) == 2


def test_a_step_behind_a_cache(bundles: Any) -> None:
    found = explain(bundles("decoder-rope", layers=1, cache="static"), past=20, threads=1)
    assert found.call == "batch 1, length 1, past 20"
    positions = [row for row in found.parts[0].rows if row.share == "positions"]
    names = {kernel.op_type for row in positions for kernel in row.kernels}
    assert {"Cos", "Sin"} <= names


@pytest.mark.all
def test_parts_are_told_apart(bundles: Any) -> None:
    found = explain(bundles("encoder-decoder-t5", layers=1), length=7, past=4, threads=1)
    assert found.call == "batch 1, length 7, past 4, encoder length 11"
    encoder, decoder = found.parts
    assert (encoder.file, decoder.file) == ("encoder_model.onnx", "decoder_model.onnx")
    assert any("CausalMaskedDistance" in d.node_type for d in decoder.decisions)
    assert not any("CausalMaskedDistance" in d.node_type for d in encoder.decisions)
    for part in found.parts:
        assert part.fraction("positions") > 0
        assert all(decision.nodes for decision in part.decisions)


@pytest.mark.all
def test_weights_in_a_file_of_their_own(bundles: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posexport.conversion.export.save.EXTERNAL_ABOVE", 1)
    bundle = bundles("encoder-absolute")
    assert (bundle / "model.onnx.data").is_file()
    (part,) = explain(bundle, length=5, threads=1).parts
    assert "Gather" in counts(rows(part)[TABLES])  # of the learned table


def test_refusals_come_from_the_manifest() -> None:
    lowerings = {
        "SomeAttention": LoweringSpec(lowering="skew", rejected={"blockwise": "slower here"}, nodes=1),
        "OtherAttention": LoweringSpec(lowering="formula", rejected={}, nodes=1),
    }
    manifest: Any = SimpleNamespace(lowerings=lowerings)
    (decision,) = _decisions(manifest, Origins(model(), ROLES))  # this graph has no node of the other
    assert decision == Decision(
        node_type="SomeAttention", nodes=1, lowering="skew", rejected={"blockwise": "slower here"}
    )
    part = GraphCost(file="m", runs=1, ms=1, profiled_ms=2, kernels_ms=1, decisions=[decision], rows=[])
    told = Explanation(bundle="b", target="cpu", provider="cpu", threads=0, onnxruntime="1", call="", parts=[part])
    assert notes(told) == []
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(
        shown(msgspec.structs.replace(told, passes={"gelu": PassSpec(nodes=3, rejected=["no such formula"])}))
    )
    assert re.search(r"gelu +3 +no such formula", console.export_text())
    assert (
        "no lowerings are recorded"
        in notes(msgspec.structs.replace(told, parts=[msgspec.structs.replace(part, decisions=[])]))[0]
    )


def test_the_command(bundles: Any) -> None:
    bundle = str(bundles("encoder-relative-key", "max_positions=300"))
    done = CliRunner().invoke(group, ["explain", bundle, "--length", "9", "--threads", "1", "--json"])
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert set(document["parts"][0]["shares"]) == {"positions", "attention", "rest"}
    done = CliRunner().invoke(group, ["explain", bundle, "--length", "9", "--threads", "1"])
    assert done.exit_code == 0
    assert "RelativeKeyScores" in done.stdout
    assert "model.onnx: positions " in done.stdout


def test_other_providers_are_named() -> None:
    from posexport.inspect.explain.records import Kernel

    kernels = [
        Kernel(op_type="MatMul", provider="CUDAExecutionProvider", count=2, ms=3),
        Kernel(op_type="Gather", provider="CPUExecutionProvider", count=1, ms=1),
    ]
    row = CostRow(share="rest", name="all else", nodes=0, within=[], ms=4, kernels=kernels)
    part = GraphCost(file="m.onnx", runs=3, ms=3.5, profiled_ms=5, kernels_ms=4, decisions=[], rows=[row])
    told = Explanation(bundle="b", target="cuda", provider="cuda", threads=0, onnxruntime="1", call="", parts=[part])
    console = Console(width=160, no_color=True)
    with console.capture() as capture:
        console.print(shown(told))
    assert "2 MatMul 3, 1 Gather on CPUExecutionProvider 1" in capture.get()
    assert summary(part).startswith(
        "m.onnx: positions 0.0%, attention 0.0%, rest 100.0% of 4 ms in kernels; a call takes"
    )


def ids(*axes: str) -> InputSpec:
    return InputSpec(name="ids", dtype="int64", axes=["batch_size", *axes], role="tokens", size=9)


def test_sizes() -> None:
    def sized(*axes: str, length: int | None = None, past: int | None = None, **limits: Any) -> dict[str, int]:
        return feeds.sizes([ids(*axes)], Limits(**limits), batch=1, length=length, past=past)

    assert sized(SEQUENCE)[SEQUENCE] == 128
    assert sized(SEQUENCE, max_length=60)[SEQUENCE] == 60
    assert sized(SEQUENCE, PAST, past=50, max_length=60)[SEQUENCE] == 1
    assert sized(SEQUENCE, PAST, past=0, max_length=60)[SEQUENCE] == 60
    static = sized(SEQUENCE, CAPACITY, length=3, past=50)
    assert (static[TOTAL], static[CAPACITY], static[PAST]) == (53, 53, 50)
    far = sized(SEQUENCE, PAST, ENCODER_SEQUENCE, length=8, past=4, max_length=10, limited_axes=[ENCODER_SEQUENCE])
    assert far[ENCODER_SEQUENCE] == 10
    with pytest.raises(PosexportError, match="--length 8 with --past 55 is too long"):
        sized(SEQUENCE, PAST, length=8, past=55, max_length=60)
    heard = Limits(convolutions=[(4, 2)], min_length=4)
    assert feeds.sizes([ids(SEQUENCE)], heard, batch=1, length=None, past=None)[SEQUENCE] == 127 * 2 + 4


@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        (None, [], f"has no {MANIFEST}; make one with posexport convert"),
        ("encoder-relative-key", ["--length", "301"], "--length 301 is too long: this bundle takes at most 300"),
        ("encoder-relative-key", ["--past", "3"], "--past 3 is about a decoder's cache, and this bundle has none"),
        ("encoder-relative-key", ["--provider", "tpu"], "unknown provider 'tpu'"),
    ],
)
def test_bad_input_is_one_sentence(
    source: str | None,
    options: list[str],
    says: str,
    bundles: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from posexport.cli import main

    bundle = tmp_path if source is None else bundles(source, "max_positions=300")
    monkeypatch.setattr("sys.argv", ["posexport", "explain", str(bundle), *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1
