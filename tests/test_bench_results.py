"""``posexport bench``: runs that go on, who is left out, how results are shown. Speed itself is never asserted."""

import importlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx.parser
import pytest
from click.testing import CliRunner

from posexport.bench import checkpoints, measurement, nodes, recipes, resume, suites
from posexport.bench import measure_suite as running
from posexport.bench.candidates import Candidate, Checkpoint
from posexport.bench.chart import draw
from posexport.bench.curves import curve, exponent, is_curve, megabytes, milliseconds
from posexport.bench.environments import FailedError
from posexport.bench.interleaved import SamplingBudget
from posexport.bench.machine import machine
from posexport.bench.markdown import tables
from posexport.bench.measure_suite import Case, bench
from posexport.bench.measurement import Conditions
from posexport.bench.ratio_table import shown
from posexport.bench.records import Document, Figure, Point, Result, figure
from posexport.bench.workers import reading
from posexport.bench.workers.job import Job
from posexport.bench.workers.onnx import Graph
from posexport.cli import group
from posexport.errors import PosexportError
from posexport.machine import available


def _who(name: str, **more: object) -> Candidate:
    made = {
        "recipe": None,
        "model": name,
        "vocab": 9,
        "weights": name,
        **more,
    }
    return Candidate(name=name, **made)


class Workers:
    """Stands in for processes, with a made-up answer each."""

    def __init__(self, **answers: list[float]) -> None:
        self.answers, self.ran = answers, []

    def __call__(self, *command: object) -> "Process":
        *_, arguments = command
        job = json.loads(arguments[0])
        self.ran.append((job["model"], job["new"]))
        return Process(job, self.answers.get(job["model"], [1.0]))


class Process:
    """One of `Workers`."""

    def __init__(self, job: dict[str, str], answer: list[float]) -> None:
        self.job, self.answer = job, answer

    def ask(self, _line: str) -> dict[str, object]:
        if self.job["model"] == "broken":
            raise FailedError("it does not load")
        np.save(self.job["answer"], np.array(self.answer))
        return {"ms": 1.0, "cpu_ms": 1.0, "load_s": 0.5, "peak": 0, "growth": 7, "held": None, "versions": {}}

    def close(self) -> int:
        return 99

    def kill(self) -> None:
        pass


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    made = Workers()
    monkeypatch.setattr(measurement, "Worker", made)
    return made


def _heat(*who: str, lengths: tuple[int, ...] = (8, 16), **more: object) -> Case:
    return Case(model="m", candidates=[_who(name) for name in who], points=[Point(new=n) for n in lengths], **more)


def test_a_run_goes_on_with_what_is_missing(workers):
    case = _heat("baseline", "other")
    first = bench("models", [case], Conditions(rounds=2))
    assert len(workers.ran) == 12  # each of two rounds at two points: two of the baseline, one of the other
    noisy = msgspec.structs.replace(first.results[1], valid=False)
    workers.ran.clear()
    again = bench(
        "models",
        [case],
        Conditions(rounds=2),
        before=msgspec.structs.replace(first, results=[first.results[0], noisy], seconds=100.0),
    )
    assert workers.ran == [("baseline", 16), ("baseline", 16), ("other", 16)] * 2
    assert [result.point.new for result in again.results] == [8, 16]
    assert again.valid
    assert again.seconds > 100
    workers.ran.clear()
    bench("models", [_heat("baseline", "new")], Conditions(rounds=2), before=first)
    assert len(workers.ran) == 12  # other candidates were other work


def test_a_failure_is_tried_again(workers):
    case = _heat("baseline", "broken", lengths=(8,))
    first = bench("models", [case], Conditions(rounds=2))
    workers.ran.clear()
    bench("models", [case], Conditions(rounds=2), before=first)
    assert ("broken", 8) in workers.ran


@pytest.mark.usefixtures("workers")
def test_a_run_goes_on_under_the_same_conditions_only(tmp_path):
    path = tmp_path / "found.json"
    conditions = {"threads": 2, "provider": "cpu", "rounds": 2}
    assert resume.earlier(path, "models", Conditions(**conditions)) is None
    document = bench("models", [_heat("baseline")], Conditions(rounds=2, threads=2))
    path.write_bytes(document.to_json())
    assert resume.earlier(path, "models", Conditions(**conditions)) == document
    with pytest.raises(PosexportError, match="threads 2 there, 1 here"):
        resume.earlier(path, "models", Conditions(**{**conditions, "threads": 1}))
    path.write_bytes(msgspec.structs.replace(document, code="0" * 64).to_json())
    with pytest.raises(PosexportError, match="code 000000000000 there"):
        resume.earlier(path, "models", Conditions(**conditions))
    path.write_text("{}")
    with pytest.raises(PosexportError, match="no document of posexport bench"):
        resume.earlier(path, "models", Conditions(**conditions))


@pytest.mark.usefixtures("workers")
def test_what_comes_late_is_left_out():
    cases = [_heat("baseline"), Case(model="extra", candidates=[_who("baseline")], points=[Point(new=8)], within=0.0)]
    kept = []
    document = bench("models", cases, Conditions(rounds=2), keep=kept.append)
    assert [result.model for result in document.results] == ["m", "m"]
    assert "extra: the run had taken" in document.left_out[0]
    assert kept[-1] == document


def test_what_does_not_fit_is_left_out_and_no_failure(workers):
    large = _who("baseline", pair_bytes=10**18)
    case = Case(model="m", candidates=[large, _who("other")], points=[Point(new=2)])
    document = bench("models", [case], Conditions(rounds=2))
    baseline, other = document.results[0].figures
    assert baseline.failed is None
    assert "it needs 4000000000.0 GB" in str(baseline.left_out)
    assert (other.ms, other.to_baseline) == (1.0, None)
    assert document.results[0].valid  # two processes of the other show that the machine was quiet
    assert document.failed == []
    assert workers.ran == [("other", 2)] * 4


def test_weights_are_compared_across_heats_and_shapes(workers):
    workers.answers = {"cpu": [1.0, 2.0], "portable": [1.0, 9.0], "short": [1.0], "none": [1.0, float("nan")]}
    cases = [
        Case(model=name, candidates=[_who("baseline"), _who(name, weights="w")], points=[Point(new=8)])
        for name in workers.answers
    ]
    document = bench("models", cases, Conditions(rounds=2))
    found = {result.model: result.figures[1] for result in document.results}
    assert [figure.wrong for figure in found.values()] == [False, True, True, True]
    # JSON has no infinity: what is wrong must still say so when it is read again
    again = msgspec.json.decode(document.to_json(), type=Document)
    assert [result.figures[1].wrong for result in again.results] == [False, True, True, True]


def test_nodes_of_functions_are_counted_once(tmp_path):
    text = """<ir_version: 10, opset_import: ["": 18, "own": 1]> g (float[1] x, bool b) => (float[1] y) {
        a = own.twice (x)
        c = own.twice (a)
        y = If (b) <then_branch = t () => (float[1] s) { s = Neg (c) }, else_branch = e () => (float[1] s) {
            u = Neg (c)
            s = Neg (u) }>
    }
    <domain: "own", opset_import: ["": 18]> twice (x) => (y) { h = Add (x, x) y = Mul (h, x) }"""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    assert nodes.count(path) == 3 + 3 + 2
    assert running._nodes(path) == 8
    assert running._nodes(tmp_path / "missing.onnx") is None
    path.write_text("no graph")
    assert running._nodes(path) is None


MEASURE = """
import numpy as np
from posexport.bench.workers.memory import Memory
ballast = np.ones(25_000_000)
del ballast
memory = Memory()
memory.mark()
kept = np.ones(8_000_000)
print(memory.growth(), memory.whole())
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system keeps one peak for a process")
def test_growth_is_what_calls_add_to_what_is_held():
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    growth, whole = map(int, done.stdout.split())
    assert 63e6 < growth < 80e6  # not hidden by the 200 MB before it
    assert whole > 200e6


def test_available_memory_is_less_than_all():
    assert 0 < available() <= machine().memory


def test_a_control_group_limits_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("posexport.machine.GROUP", tmp_path)
    (tmp_path / "memory.current").write_text("1000\n")
    for limit, free in (("4000", 3000), ("500", 0)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert available() == free
    (tmp_path / "memory.max").write_text("max\n")
    assert available() > 2**20


def test_a_changed_factory_is_made_again(tmp_path):
    source = tmp_path / "mine.py"
    source.write_text("def factory(): ...")
    recipe = recipes.Recipe(name="x", module="posexport", arguments=("convert", f"{source}:factory"))
    before = recipe.digest
    assert recipe.digest == before
    source.write_text("def factory(): return 1")
    assert recipe.digest != before


def test_ours_are_made_for_the_target():
    def targets(cases: list[Case]) -> set[str]:
        recipes_ = [who.recipe for case in cases for who in case.candidates if who.recipe and who.third_party is None]
        options = [recipe.arguments for recipe in recipes_ if recipe.module == "posexport"]
        assert all("--no-verify" in each for each in options)
        return {each[each.index("--target") + 1] for each in options}

    assert targets(suites.paper("cuda")) == {"cuda", "portable"}
    assert targets(suites.paper("portable")) == {"portable"}
    assert targets(suites.decode("cpu")) == {"cpu", "portable"}
    assert [case.within is None for case in suites.paper("cpu")] == [True, False]
    names = [who.name for who in suites.decode("cpu")[0].candidates]
    assert {"decoder-nope", "decoder-nope static", "posexport static"} <= set(names)


def test_an_encoder_below_a_decoder_has_the_weights_it_has_alone() -> None:
    alone, below = (list(checkpoints.tensors(checkpoints.CONFIGS[name])) for name in ("t5", "t5-with-decoder"))
    assert below[: len(alone)] == alone
    assert {name.split(".")[0] for name, _ in below[len(alone) :]} == {"decoder"}
    optimum = Checkpoint.drawn("t5").optimum()
    assert optimum.recipe
    assert optimum.recipe.checkpoint
    assert optimum.recipe.checkpoint.name == "checkpoint-t5-with-decoder"
    assert (optimum.model, optimum.weights) == ("encoder_model.onnx", "t5")


def test_reading_reads_what_a_step_reads() -> None:
    made = Checkpoint.drawn("llama").reading()
    layer = 768 * (768 + 2 * 256) + 768 * 768 + 3 * 768 * 2048 + 2 * 768
    assert made.options == {"numbers": 12 * layer + 768 + 768 * 32000, "per_token": 12 * 2 * 4 * 64}
    options = {"numbers": 70, "per_token": 30}
    sizes = {"batch": 3, "past": 1, "new": 1, "runs": 1, "warmup": 0, "threads": 1, "vocab": 9}
    reader = reading.reader(Job(model="", answer="", options=options, **sizes))
    assert np.allclose(reader.read(np.zeros((3, 1), np.int64)), np.full((3, 1), 0.1))


def _document(suite: str, *results: Result, left_out: tuple[str, ...] = ()) -> Document:
    return Document(
        suite=suite,
        threads=2,
        provider="cpu",
        rounds=2,
        machine=machine(),
        commit="abc",
        created="2026-11-21T06:07:24+00:00",
        seconds=600.0,
        versions={"onnxruntime": "1.31.1"},
        results=list(results),
        left_out=list(left_out),
    )


def _figure(name: str, rounds: list[list[float]], floor_ms: float | None = None, **more: object) -> Figure:
    ratios = [[ms / floor_ms for ms in each] for each in rounds] if floor_ms else []
    return figure(name, rounds, ratios, **{"by_posexport": True, **more})


def _result(model: str, point: Point, *figures: Figure, reason: str | None = None) -> Result:
    name = figures[0].candidate
    return Result(model=model, point=point, baseline=name, valid=reason is None, reason=reason, figures=list(figures))


def test_ratios_of_the_paper():
    def at(length: int, model: str = "BERT", suffix: str = "", reason: str | None = None) -> Result:
        made = {"nodes": 280, "export_seconds": 14.2, "export_peak": 1.3e9}
        baseline = _figure("encoder-nope", [[200.0]], 200.0, **{**made, "export_peak": 1_300_000_000})
        rope = _figure(f"encoder-rope{suffix}", [[210.0 + length]], 200.0, nodes=300)
        return _result(model, Point(new=length), baseline, rope, reason=reason)

    found = tables(_document("paper", at(10), at(20, reason="noise"), at(10, "P", " portable"), left_out=("x: late",)))
    head, _, baseline, rope, *rest = found.splitlines()
    assert head == "|  | 10 | 20 \\* | portable, 10 | nodes | export, no proof |".replace("|  |", "| |")
    assert baseline == "| `nope`, baseline without positions | 200 ms | — | | 280 | 14 s, 1300 MB |"
    assert rope == "| `rope` | 1.10 | — | 1.10 | 300 | |"
    assert "not valid: BERT, length 20: noise." in rest[-1]
    assert "Left out: x: late." in rest[-1]
    assert "ONNX Runtime 1.31.1" in rest[-1]


def test_lowerings_stand_beside_what_the_planner_takes():
    def at(length: int) -> Result:
        auto = _figure("encoder-alibi auto", [[20.0]], 20.0)
        return _result(
            "encoder-alibi, 2 layers", Point(new=length), auto, _figure("encoder-alibi formula", [[25.0]], 20.0)
        )

    text = tables(_document("lowerings", at(32), at(512))).splitlines()
    assert text[0] == "| two layers | auto | formula |"
    assert text[2] == "| alibi, 32 | 20.0 ms | 1.25 |"
    assert text[3].startswith("| alibi, 512 |")


def test_the_terminal_shows_nodes_memory_and_what_is_missing():
    from rich.console import Console

    fits = _figure("posexport", [[220.0]], 200.0, nodes=280, growth=9_000_000, above=3_000_000)
    large = Figure(candidate="large", by_posexport=False, left_out="it needs 9 GB")
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(shown(_document("paper", _result("m", Point(new=8), fits, large), left_out=("x: late",))))
    lines = console.export_text().splitlines()
    (row,) = [line.split() for line in lines if line.strip().startswith("posexport  ")]
    assert row == ["posexport", "220.00", "220.00", "220.00", "-", "220.00", "1.10", "3", "280"]
    assert "large: not measured: it needs 9 GB" in lines
    assert "left out: x: late" in lines


def test_who_is_wrong_or_fails_is_not_the_quickest():
    ours = _figure("posexport", [[220.0]], 200.0)
    fast = _figure(
        "fast", [[50.0]], 200.0, by_posexport=False, wrong=True, difference=0.13, reference="eager", remark="odd"
    )
    slow = _figure("slow", [[300.0]], 200.0, by_posexport=False)
    broken = Figure(
        candidate="broken", by_posexport=False, failed="the export failed: a.b.c.TheError: no `x`. Hint: none"
    )
    baseline = _figure("encoder-nope", [[200.0]], 200.0)
    shape = _figure("encoder-nope of T5's shape", [[100.0]], 100.0)
    results = [
        _result("bert-absolute", Point(new=128), baseline, fast, slow, ours, broken),
        _result("t5", Point(new=128), shape, _figure("slow", [[90.0]], 100.0, by_posexport=False)),
    ]
    lines = tables(_document("rivals", *results)).splitlines()
    assert lines[0] == "| ms (ratio) | absolute, 128 | t5, 128 |"
    assert lines[2] == "| baseline without positions (`nope`) | 200 (1.00) | 100 (1.00) |"
    assert lines[3] == "| fast | WRONG [1] | not measured |"
    assert lines[4] == "| slow | 300 (1.50) | **90.0 (0.90)** |"
    assert lines[5] == "| posexport | **220 (1.10)** | not measured |"
    assert lines[6] == "| broken | fails [2] | not measured |"
    assert lines[8] == "[1] `its answer differs from that of eager by 0.1 of the largest value; odd`\\"
    assert lines[9] == "[2] `the export failed: TheError: no 'x'`"


def _growing(*lengths: int) -> Document:
    results = []
    for length in lengths:
        large = Figure(candidate="baseline", by_posexport=True, left_out="it needs 9 GB")
        small = _figure("baseline", [[length**2 / 1e4]], length**2 / 1e4, above=12 * length**2)
        ours = _figure("ours", [[length**2 / 5e3]], above=1000 * length)
        results.append(_result("layer", Point(new=length), large if length > 1000 else small, ours))
    return _document("growth", *results)


def test_growth_by_length():
    document = _growing(256, 512, 1024, 2048)
    assert is_curve(document.results)
    assert curve(document.results, "baseline", milliseconds) == [(256, 6.5536), (512, 26.2144)]
    assert exponent(curve(document.results, "ours", milliseconds)) == pytest.approx(2)
    assert exponent(curve(document.results, "ours", megabytes)) == pytest.approx(1)
    assert exponent([(1, 2.0)]) is None
    lines = tables(document).splitlines()
    assert lines[2] == "| 256 | 6.6 (1.00), 1 MB | 13.1, 0 MB |"
    assert lines[4] == "| 1024 | not measured [1] | 210, 1 MB |"
    assert "ours: time with length^2.0, memory with length^1.0." in lines[7]
    assert lines[9] == "[1] `it needs 9 GB`"
    assert not is_curve(_growing(256, 512).results)
    picture = draw(document, ".svg").decode()
    assert picture.startswith("<?xml")
    assert draw(_growing(256, 512), ".svg").decode().startswith("<?xml")


def test_a_wrong_answer_is_no_point_of_a_curve():
    results = [_result("m", Point(new=n), _figure("x", [[1.0]], wrong=n == 8)) for n in (4, 8, 16)]
    assert [length for length, _ in curve(results, "x", milliseconds)] == [4, 16]


def test_values_are_drawn_once(tmp_path):
    """Drawing them takes longer than what is timed."""
    path = tmp_path / "neg.onnx"
    text = '<ir_version: 10, opset_import: ["": 18]> g (float[b, 3, t] x) => (float[b, 3, t] y) { y = Neg (x) }'
    onnx.save(onnx.parser.parse_model(text), path)
    budget = {"runs": 1, "warmup": 0, "threads": 1}
    job = Job(model=str(path), batch=2, past=0, new=5, vocab=9, answer="", **budget)
    graph = Graph(job)
    first, second = (np.asarray(graph.read(job.tokens())) for _ in range(2))
    assert first.shape == (2, 3, 5)
    assert np.array_equal(first, second)
    assert graph.held == 2 * first.nbytes


@pytest.mark.all
def test_a_layer_from_its_file_to_the_chart(tmp_path, monkeypatch):
    """The real workers: a layer at four short lengths, its answers and memory."""
    monkeypatch.chdir(tmp_path)
    (case,) = suites.attention("portable")
    points = [Point(new=length) for length in (16, 24, 32, 48)]
    quick = SamplingBudget(warmup=1, runs=2, least=2, seconds=0.1)
    case = Case(model=case.model, candidates=case.candidates, points=points, budget=quick)
    document = bench("attention", [case], Conditions(rounds=1, threads=1))
    for result in document.results:
        baseline, ours, published = result.figures
        assert baseline.failed is ours.failed is published.failed is None
        assert (baseline.nodes, published.wrong, ours.wrong) == (1, False, False)
        assert published.difference is not None
        assert published.difference < 1e-5
        assert baseline.above is not None
        assert baseline.growth is not None
        held = 4 * 12 * 64 * 4 * result.point.new
        assert baseline.growth - baseline.above in (held, baseline.growth)
    assert is_curve(document.results)
    assert draw(document, ".svg")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["encoder-nope", "--resume"], "--resume needs the file to go on with; give -o FILE")],
)
def test_bad_input_is_one_sentence(arguments, said):
    done = CliRunner().invoke(group, ["bench", *arguments])
    assert said in str(done.exception)


def test_the_docs_say_how_to_measure_what_is_not_there(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "ci")
    module = importlib.import_module("docs_tables")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(module, "PICTURES", tmp_path)
    assert "posexport bench --suite growth" in module.TABLES["growth"]()
    (tmp_path / "growth.json").write_bytes(_growing(256, 512, 1024, 2048).to_json())
    assert module.TABLES["growth"]().startswith("| length: ms (ratio), memory | baseline | ours |")
    (tmp_path / "growth.svg").touch()
    assert module.TABLES["growth"]().startswith("![time and memory against length](pictures/growth.svg)\n\n| length")
