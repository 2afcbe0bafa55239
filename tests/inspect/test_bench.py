"""``posexport bench``: who is measured when, what is reported, what is refused. Speed itself is never asserted."""

import io
import itertools
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
from rich.console import Console

from posexport.base.system.machine import available
from posexport.cli import group
from posexport.inspect.bench import candidate, measurement
from posexport.inspect.bench.candidate import Candidate, nodes, points
from posexport.inspect.bench.measurement import Conditions, PartnerError, SamplingBudget, interleave
from posexport.inspect.bench.processes import FailedError, Worker, run
from posexport.inspect.bench.records import Document, Point, figure, judge
from posexport.inspect.bench.run import Run, machine
from posexport.inspect.bench.tables import draw, shown
from posexport.inspect.bench.workers.job import Job
from posexport.inspect.bench.workers.onnx import Graph
from tests.tolerances import agree


def _candidate(name: str, weights: str = "w", **more: object) -> Candidate:
    return Candidate(name=name, model=name, vocab=9, weights=weights, **more)


class Workers:
    """Stands in for processes: gives made-up times and answers, and remembers who began when.

    ``ms``: of each name the times of its processes in turn; a process without times does not load, and one that is out
    of times is killed. The first one of every round gives its last time over and over: all take turns with it.
    """

    def __init__(self, ms: dict[str, list[list[float]]], answers: dict[str, list[float]] | None = None) -> None:
        self.ms, self.answers = {name: iter(rounds) for name, rounds in ms.items()}, answers or {}
        self.ran: list[tuple[str, int, int]] = []
        self.alive: list[Process] = []

    def __call__(self, _module: str, arguments: list[str], **_: object) -> "Process":
        job = json.loads(arguments[0])
        self.ran.append((job["model"], job["past"], job["new"]))
        self.alive.append(Process(self, job, next(self.ms[job["model"]], [])))
        return self.alive[-1]


class Process:
    """One of `Workers`."""

    def __init__(self, workers: Workers, job: dict[str, object], times: list[float]) -> None:
        self.workers, self.job, self.times = workers, job, times
        self.again = itertools.cycle(times) if not workers.alive else iter(times)

    def ask(self, line: str) -> dict[str, object]:
        if not self.times:
            raise FailedError(f"{self.job['model']} does not load")
        if line == "call":
            ms = next(self.again, None)
            if ms is None:
                raise FailedError(f"{self.job['model']} was killed")
            return {"ms": ms, "cpu_ms": 2 * ms}
        if line == "begin":
            np.save(self.job["answer"], np.array(self.workers.answers.get(self.job["model"], [1.0, 2.0])))
            return {}
        return {"load_s": 0.5, "peak": 10**8, "growth": 7, "held": 5, "versions": {"library": "1.0"}}

    def close(self) -> int:
        return 10**8

    def kill(self) -> None:
        if self in self.workers.alive:
            self.workers.alive.remove(self)


def _bench(
    monkeypatch: pytest.MonkeyPatch, workers: Workers, *who: Candidate, rounds: int = 2, **more: object
) -> Document:
    monkeypatch.setattr(measurement, "Worker", workers)
    done = Run("models", Conditions(rounds=rounds), total=1)
    done.measure("m", who, Point(new=8), SamplingBudget(runs=3), **more)
    assert workers.alive == []
    return done.document()


def test_every_figure_is_from_a_fresh_process_beside_the_baseline(monkeypatch):
    workers = Workers({"a": [[1.0] * 3] * 8, "b": [[1.0] * 3] * 4, "c": [[1.0] * 3] * 4})
    monkeypatch.setattr(measurement, "Worker", workers)
    moves = []
    done = Run("models", Conditions(rounds=2), total=2, progress=lambda *move: moves.append(move))
    for point in (Point(new=8), Point(past=4, new=1)):
        done.measure("m", [_candidate(n) for n in "abc"], point, SamplingBudget(runs=3))
    assert [name for name, *_ in workers.ran] == list("aabc") * 4
    assert [where for _, *where in workers.ran] == [[0, 8]] * 8 + [[4, 1]] * 8
    assert [move[:2] for move in moves] == [(n, 12) for n in range(12)]


def test_medians_quartiles_and_ratios(monkeypatch):
    workers = Workers(
        {
            # two processes a round: the one that the others take turns with, and the baseline's own
            "baseline": [[10.0], [10.0, 11.0, 10.0], [5.0], [5.0] * 3],
            "slow": [[11.0, 12.0, 13.0], [7.0, 7.5, 8.0]],
        }
    )
    document = _bench(monkeypatch, workers, _candidate("baseline"), _candidate("slow", environment="other"))
    baseline, slow = document.results[0].figures
    assert (baseline.to_baseline, baseline.difference, baseline.peak, baseline.growth) == (1.0, None, 10**8, 7)
    assert (baseline.above, baseline.wrong, baseline.ratios) == (2, False, [1.0, 1.0])
    assert (slow.ms, slow.low, slow.high) == (9.5, 7.625, 11.75)
    assert (slow.cpu_ms, slow.rounds) == (19.0, [12.0, 7.5])
    # the machine became twice as fast, which the ratio does not show
    assert slow.ratios == [1.2, 1.5]
    agree(slow.to_baseline, 1.35, "rounded", np.float64)
    assert {"library", "other: library"} < set(document.versions)


class Scripted:
    """A process whose calls take what is given, in turn; None: it is killed."""

    def __init__(self, log: list[str], name: str, *ms: float | None) -> None:
        self.log, self.name, self.ms = log, name, iter(ms)

    def ask(self, line: str) -> dict[str, float]:
        self.log.append(f"{line} {self.name}")
        took = next(self.ms) if line == "call" else 0
        if took is None:
            raise FailedError("it was killed")
        return {"ms": took, "cpu_ms": took}


def test_calls_lie_between_two_of_the_other():
    log: list[str] = []
    one, other = Scripted(log, "one", 3.0, 6.0), Scripted(log, "other", 1.0, 2.0, 4.0)
    found = interleave(one, other, SamplingBudget(runs=2))
    assert log == ["begin one", "begin other", "call other", *["call one", "call other"] * 2]
    assert found.ratios == [2.0, 2.0]


def test_calls_end_when_the_time_is_over_but_not_before_enough_are_made():
    budget = SamplingBudget(runs=9, least=2, seconds=0.01)
    assert len(interleave(Scripted([], "one", *[2.0] * 9), None, budget).ms) == 6
    assert len(interleave(Scripted([], "one", *[2.0] * 9), Scripted([], "other", *[2.0] * 9), budget).ms) == 3
    assert len(interleave(Scripted([], "one", *[99.0] * 9), None, budget).ms) == 2


def test_the_one_that_fails_is_named():
    with pytest.raises(FailedError):
        interleave(Scripted([], "one", None), Scripted([], "other", 1.0), SamplingBudget())
    with pytest.raises(PartnerError):
        interleave(Scripted([], "one", 1.0), Scripted([], "other", 1.0, None), SamplingBudget())


def test_who_fails_is_reported_and_the_others_go_on(monkeypatch):
    workers = Workers({"baseline": [[1.0] * 3] * 4, "broken": [], "other": [[2.0] * 3] * 2})
    who = [_candidate("baseline"), _candidate("broken", by_posexport=False), _candidate("other")]
    document = _bench(monkeypatch, workers, *who, _candidate("unmade", by_posexport=False, failed="no model"))
    baseline, broken, other, unmade = document.results[0].figures
    assert (broken.failed, broken.ms) == ("broken does not load", None)
    assert (unmade.failed, unmade.ms) == ("no model", None)
    assert (baseline.to_baseline, other.to_baseline) == (1.0, 2.0)
    assert [name for name, *_ in workers.ran].count("broken") == 1
    assert document.failed == []  # the failure of another tool is a result
    assert "broken: does not work: broken does not load" in _text(document)
    assert "not valid" not in draw(document, ".svg").decode()
    assert draw(document, ".png").startswith(b"\x89PNG")


def test_a_failed_baseline_leaves_no_ratios(monkeypatch):
    workers = Workers({"baseline": [], "other": [[2.0] * 3] * 4})
    document = _bench(monkeypatch, workers, *map(_candidate, ("baseline", "other")))
    assert document.failed == ["baseline"]
    assert not document.valid
    assert (document.results[0].figures[1].ms, document.results[0].figures[1].to_baseline) == (2.0, None)
    assert "NOT VALID, the baseline failed" in _text(document)


def test_a_baseline_that_is_killed_between_does_not_end_the_others(monkeypatch):
    # the other's first process is lost with the baseline's; its second is measured alone
    workers = Workers({"baseline": [[1.0], [1.0] * 3], "other": [[2.0] * 3] * 2})
    asked = Process.ask

    def dying(self: Process, line: str) -> dict[str, object]:
        if self is workers.alive[0] and self.job["model"] == "baseline" and len(workers.ran) > 2:
            raise FailedError("it was killed")
        return asked(self, line)

    monkeypatch.setattr(Process, "ask", dying)
    document = _bench(monkeypatch, workers, _candidate("baseline"), _candidate("other"), rounds=1)
    other = document.results[0].figures[1]
    assert (other.failed, other.ms, other.to_baseline) == (None, 2.0, None)


def test_what_is_left_out_is_no_failure(monkeypatch):
    workers = Workers({"other": [[2.0] * 3] * 4})
    who = map(_candidate, ("baseline", "other"))
    document = _bench(monkeypatch, workers, *who, left_out={"baseline": "it needs 9 GB"})
    baseline, other = document.results[0].figures
    assert (baseline.failed, baseline.left_out, baseline.ms) == (None, "it needs 9 GB", None)
    assert (other.ms, other.to_baseline) == (2.0, None)
    assert document.valid  # two processes of the other show that the machine was quiet
    assert document.failed == []
    assert "baseline: not measured: it needs 9 GB" in _text(document)


def test_answers_that_disagree_are_marked(monkeypatch):
    answers = {"near": [1.0, 2.0001], "far": [1.0, 2.5], "short": [1.0], "none": [1.0, float("nan")]}
    names = ("baseline", "first", *answers)
    workers = Workers({n: [[1.0] * 3] * 4 for n in names}, answers)
    document = _bench(monkeypatch, workers, _candidate("baseline", "own"), *map(_candidate, names[1:]))
    found = {f.candidate: f.difference for f in document.results[0].figures}
    assert found["baseline"] is found["first"] is None
    agree(found["near"], 5e-5, "rounded", np.float32)
    agree(found["far"], 0.25, "rounded", np.float64)
    assert document.failed == ["far", "short", "none"]  # ours, and another model's answer
    # JSON has no infinity: what is wrong must still say so when it is read again
    assert msgspec.json.decode(document.to_json(), type=Document).failed == document.failed
    row, *_, note = [line for line in _text(document).splitlines() if "far" in line and "WRONG" in line]
    assert "1.00" not in row  # it is not shown as fast
    assert note == "far: WRONG: its answer differs from that of first by 0.2 of the largest value"


@pytest.mark.parametrize(
    ("ratios", "said"),
    [([[1.0, 1.049], [1.2]], None), ([[1.06]], "differ by 6%"), ([[0.9], [0.9]], "differ by 11%")],
)
def test_a_noisy_machine_makes_a_run_not_valid(ratios, said):
    reason = judge(ratios)
    assert reason is None if said is None else said in str(reason)


def test_a_run_is_marked_by_its_baseline_alone(monkeypatch):
    workers = Workers({"baseline": [[1.0], [1.2] * 3] * 2, "other": [[2.0] * 3] * 2})
    assert not _bench(monkeypatch, workers, *map(_candidate, ("baseline", "other"))).valid
    workers = Workers({"baseline": [[1.0], [1.0] * 3] * 2, "other": [[2.0] * 3, [3.0] * 3]})
    assert _bench(monkeypatch, workers, *map(_candidate, ("baseline", "other"))).valid


def _text(document: Document) -> str:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(shown(document))
    return console.export_text()


def test_one_figure_of_one_call():
    found = figure("x", [[3.0]], by_posexport=True)
    assert found.low == found.high == 3.0


def test_a_process_that_fails_says_why():
    missing = Path.cwd() / "nowhere"
    with pytest.raises(FailedError) as caught:  # and names no folder of this machine
        run("timeit", ["-n", "1", f"open({str(missing)!r})"])
    assert str(caught.value).endswith("'nowhere'")
    with pytest.raises(FailedError, match="took too long"):
        run("timeit", ["-n", "1", "import time; time.sleep(60)"], seconds=0.5)


def test_a_worker_answers_line_by_line_and_says_why_it_ended(tmp_path):
    job = {"model": "none.onnx", "batch": 1, "past": 0, "new": 1, "runs": 1, "warmup": 1, "threads": 1, "vocab": 9}
    job |= {"answer": str(tmp_path / "answer.npy")}
    lost = Worker("posexport.inspect.bench.workers.onnx", [json.dumps(job)])
    with pytest.raises(FailedError, match=r"none.onnx"):
        lost.ask("begin")
    late = Worker("timeit", ["-n", "1", "import time; time.sleep(60)"], seconds=0.5)
    with pytest.raises(FailedError, match="took too long"):
        late.ask("begin")
    silent = Worker("this", [])
    with pytest.raises(FailedError, match="without an answer"):
        silent.ask("begin")
    for worker in (lost, late, silent):
        worker.kill()  # has ended: nothing happens


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
    assert nodes(path) == 3 + 3 + 2
    assert nodes(tmp_path / "missing.onnx") is None
    path.write_text("no graph")
    assert nodes(path) is None


MEASURE = """
import numpy as np
from posexport.inspect.bench.workers.memory import Memory
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
    monkeypatch.setattr("posexport.base.system.machine.GROUP", tmp_path)
    (tmp_path / "memory.current").write_text("1000\n")
    for limit, free in (("4000", 3000), ("500", 0)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert available() == free
    (tmp_path / "memory.max").write_text("max\n")
    assert available() > 2**20


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
def test_models_are_converted_and_measured(tmp_path):
    """The command as it is, of built-in models with the same parameters."""
    arguments = ["encoder-nope", "encoder-rope", "--set", "layers=1", "--length", "4", "--batch", "2", "--rounds", "1"]
    done = CliRunner().invoke(group, ["bench", *arguments, "--mixed", "--json", "-o", str(tmp_path / "found.json")])
    assert done.exit_code == 0, done.output
    document = msgspec.json.decode((tmp_path / "found.json").read_bytes(), type=Document)
    assert msgspec.json.decode(done.stdout, type=Document).results == document.results
    (result,) = document.results
    assert result.point == Point(batch=2, new=4)
    baseline, rope = result.figures
    assert len(baseline.ratios) == 1  # two processes of the baseline, in turn
    assert not rope.wrong
    assert rope.difference is None  # its answer is another model's
    assert (rope.export_seconds or 0) > 0
    assert (rope.nodes or 0) > (baseline.nodes or 0) > 0
    assert [each.candidate for each in document.mixed] == ["encoder-nope", "encoder-rope"]
    assert all(0 < each.loaded < each.most and each.held <= each.most for each in document.mixed)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["encoder-nop"], "did you mean encoder-nope"),
        (["encoder-nope", "--plot", "x.gif"], "must end in .png or .svg"),
        (["encoder-nope", "-o", "missing/x.json"], "is not a directory"),
    ],
)
def test_bad_input_is_one_sentence(arguments, said):
    done = CliRunner().invoke(group, ["bench", *arguments])
    assert isinstance(done.exception, Exception)
    assert said in str(done.exception)


def test_a_past_is_for_decoders(monkeypatch):
    monkeypatch.setattr(candidate, "candidates", lambda *_: ([_candidate("x")], False))
    done = CliRunner().invoke(group, ["bench", "x", "--past", "4"])
    assert "--past is for decoders with a cache, x has none" in str(done.exception)


def test_mixed_batches_are_for_models_without_a_cache(monkeypatch):
    monkeypatch.setattr(candidate, "candidates", lambda *_: ([_candidate("x")], True))
    done = CliRunner().invoke(group, ["bench", "x", "--mixed"])
    assert "--mixed is for models without a cache, x has one" in str(done.exception)


def test_points_suit_the_model():
    assert points([], [], [], cached=True) == [Point(past=512, new=1)]
    assert [p.new for p in points([], [], [], cached=False)] == [128, 512]
    assert points([7], [2, 3], [1], cached=True) == [Point(batch=b, past=1, new=7) for b in (2, 3)]
