"""``posexport bench``: who is measured when, what is reported, what is refused. Speed itself is never asserted."""

import itertools
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from posexport.bench import candidates, checkpoints, measurement, recipes
from posexport.bench.candidates import Candidate
from posexport.bench.chart import draw
from posexport.bench.environments import Ended, FailedError, Worker, run
from posexport.bench.interleaved import LostError, SamplingBudget, interleave
from posexport.bench.measure_suite import Case, bench
from posexport.bench.measurement import Conditions
from posexport.bench.models import points
from posexport.bench.ratio_table import shown
from posexport.bench.recipes import OUT, Recipe, make
from posexport.bench.records import Document, Point, figure, judge
from posexport.bench.suites import SUITES, chosen
from posexport.cli import group
from posexport.sources.resolve import LoadOptions, load_source

TINY = {
    "vocab_size": 29,
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "head_dim": 4,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "d_model": 20,
    "d_kv": 4,
    "d_ff": 12,
    "num_layers": 2,
    "num_heads": 5,
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _candidate(name: str, weights: str = "w", third_party: str | None = None) -> Candidate:
    return Candidate(
        name=name,
        recipe=None,
        model=name,
        vocab=9,
        weights=weights,
        third_party=third_party,
    )


class Workers:
    """Stands in for processes: gives made-up times and answers, and remembers who began when.

    ``ms``: of each name the times of its processes in turn; a process without times does not load, and one that is out
    of times is killed. The first one of every round gives its last time over and over: all take turns with it.
    """

    def __init__(self, ms: dict[str, list[list[float]]], answers: dict[str, float] | None = None) -> None:
        self.ms, self.answers = {name: iter(rounds) for name, rounds in ms.items()}, answers or {}
        self.ran: list[tuple[str, int, int]] = []
        self.alive: list[Process] = []

    def __call__(self, *command: object) -> "Process":
        *_, arguments = command
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
            np.save(self.job["answer"], np.array([1.0, self.workers.answers.get(self.job["model"], 2.0)]))
            return {}
        return {"load_s": 0.5, "peak": 10**8, "growth": 7, "held": 5, "versions": {"library": "1.0"}}

    def close(self) -> int:
        return 10**8

    def kill(self) -> None:
        if self in self.workers.alive:
            self.workers.alive.remove(self)


def _bench(monkeypatch: pytest.MonkeyPatch, workers: Workers, *who: Candidate, rounds: int = 2) -> Document:
    monkeypatch.setattr(measurement, "Worker", workers)
    case = Case(model="m", candidates=list(who), points=[Point(new=8)], budget=SamplingBudget(runs=3))
    return bench("models", [case], Conditions(rounds=rounds))


def test_every_figure_is_from_a_fresh_process_beside_the_floor(monkeypatch):
    workers = Workers({"a": [[1.0] * 3] * 8, "b": [[1.0] * 3] * 4, "c": [[1.0] * 3] * 4})
    monkeypatch.setattr(measurement, "Worker", workers)
    case = Case(
        model="m",
        candidates=[_candidate(n) for n in "abc"],
        points=[Point(new=8), Point(past=4, new=1)],
        budget=SamplingBudget(runs=3),
    )
    kept = []
    document = bench("models", [case], Conditions(rounds=2), keep=kept.append)
    assert [len(part.results) for part in kept] == [1, 2]
    assert kept[-1] == document
    assert [name for name, *_ in workers.ran] == list("aabc") * 4
    assert [where for _, *where in workers.ran] == [[0, 8]] * 8 + [[4, 1]] * 8
    assert workers.alive == []


def test_medians_quartiles_and_ratios(monkeypatch):
    workers = Workers(
        {
            # two processes a round: the one that the others take turns with, and the baseline's own
            "baseline": [[10.0], [10.0, 11.0, 10.0], [5.0], [5.0] * 3],
            "slow": [[11.0, 12.0, 13.0], [7.0, 7.5, 8.0]],
        }
    )
    baseline, slow = _bench(monkeypatch, workers, _candidate("baseline"), _candidate("slow")).results[0].figures
    assert (baseline.to_baseline, baseline.difference, baseline.peak, baseline.growth) == (1.0, None, 10**8, 7)
    assert (baseline.above, baseline.wrong, baseline.ratios) == (2, False, [1.0, 1.0])
    assert (slow.ms, slow.low, slow.high) == (9.5, 7.625, 11.75)
    assert (slow.cpu_ms, slow.rounds) == (19.0, [12.0, 7.5])
    # the machine became twice as fast, which the ratio does not show
    assert slow.ratios == [1.2, 1.5]
    assert slow.to_baseline == pytest.approx(1.35)


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
    with pytest.raises(LostError):
        interleave(Scripted([], "one", 1.0), Scripted([], "other", 1.0, None), SamplingBudget())


def test_who_fails_is_reported_and_the_others_go_on(monkeypatch):
    workers = Workers({"baseline": [[1.0] * 3] * 4, "broken": [], "other": [[2.0] * 3] * 2})
    rival = _candidate("broken", third_party="torch")
    document = _bench(monkeypatch, workers, _candidate("baseline"), rival, _candidate("other"))
    baseline, broken, other = document.results[0].figures
    assert (broken.failed, broken.ms) == ("broken does not load", None)
    assert (baseline.to_baseline, other.to_baseline) == (1.0, 2.0)
    assert [name for name, *_ in workers.ran].count("broken") == 1
    assert document.failed == []  # a rival's failure is a result
    assert "broken: does not work: broken does not load" in _text(document)


def test_a_failed_floor_leaves_no_ratios(monkeypatch):
    workers = Workers({"baseline": [], "other": [[2.0] * 3] * 4})
    document = _bench(monkeypatch, workers, *map(_candidate, ("baseline", "other")))
    assert document.failed == ["baseline"]
    assert not document.valid
    assert (document.results[0].figures[1].ms, document.results[0].figures[1].to_baseline) == (2.0, None)
    assert "NOT VALID, the baseline failed" in _text(document)


def test_a_floor_that_is_killed_between_does_not_end_the_others(monkeypatch):
    workers = Workers({"baseline": [[1.0], [1.0] * 3], "other": [[2.0] * 3]})
    case = Case(
        model="m",
        candidates=[_candidate("baseline"), _candidate("other")],
        points=[Point(new=8)],
        budget=SamplingBudget(runs=3),
    )
    asked = Process.ask

    def dying(self: Process, line: str) -> dict[str, object]:
        if self is first[0] and len(workers.ran) > 2:
            raise FailedError("it was killed")
        return asked(self, line)

    first: list[Process] = []
    monkeypatch.setattr(measurement, "Worker", lambda *a: (first.append(workers(*a)), first[-1])[1])
    monkeypatch.setattr(Process, "ask", dying)
    workers.ms["other"] = iter([[2.0] * 3] * 2)
    _, other = bench("models", [case], Conditions(rounds=1)).results[0].figures
    assert (other.failed, other.ms, other.to_baseline) == (None, 2.0, None)
    assert workers.alive == []


def test_answers_that_disagree_are_marked(monkeypatch):
    workers = Workers({n: [[1.0] * 3] * 4 for n in ("baseline", "first", "near", "far")}, {"near": 2.0001, "far": 2.5})
    who = [_candidate("baseline", "own"), *(_candidate(name) for name in ("first", "near", "far"))]
    document = _bench(monkeypatch, workers, *who)
    found = {f.candidate: f.difference for f in document.results[0].figures}
    assert found["baseline"] is found["first"] is None
    assert found["near"] == pytest.approx(5e-5)
    assert found["far"] == pytest.approx(0.25)
    (far,) = [figure for figure in document.results[0].figures if figure.wrong]
    assert far.candidate == "far"
    assert document.failed == ["far"]  # ours, and another model's answer
    (row, note) = [line for line in _text(document).splitlines() if "WRONG" in line]
    assert "1.00" not in row  # it is not shown as fast
    assert note == "far: WRONG: its answer differs from that of first by 0.2 of the largest value"


@pytest.mark.parametrize(
    ("ratios", "said"),
    [([[1.0, 1.049], [1.2]], None), ([[1.06]], "differ by 6%"), ([[0.9], [0.9]], "differ by 11%")],
)
def test_a_noisy_machine_makes_a_run_not_valid(ratios, said):
    reason = judge(ratios)
    assert reason is None if said is None else said in str(reason)


def test_a_run_is_marked_by_its_floor_alone(monkeypatch):
    workers = Workers({"baseline": [[1.0], [1.2] * 3] * 2, "other": [[2.0] * 3] * 2})
    assert not _bench(monkeypatch, workers, *map(_candidate, ("baseline", "other"))).valid
    workers = Workers({"baseline": [[1.0], [1.0] * 3] * 2, "other": [[2.0] * 3, [3.0] * 3]})
    assert _bench(monkeypatch, workers, *map(_candidate, ("baseline", "other"))).valid


def _text(document: Document) -> str:
    from rich.console import Console

    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(shown(document))
    return console.export_text()


def test_one_figure_of_one_call():
    found = figure("x", [[3.0]], by_posexport=True)
    assert found.low == found.high == 3.0


def test_the_chart_shows_who_has_figures(monkeypatch):
    workers = Workers({"baseline": [[1.0] * 3] * 4, "broken": [], "other": [[2.0] * 3] * 2})
    document = _bench(monkeypatch, workers, *map(_candidate, ("baseline", "broken", "other")))
    picture = draw(document, ".svg").decode()
    assert "not valid" not in picture
    assert picture.startswith("<?xml")
    assert draw(document, ".png").startswith(b"\x89PNG")


def test_a_process_that_fails_says_why():
    with pytest.raises(FailedError, match="IndexError: list index out of range"):
        run(None, "posexport.bench.checkpoints", [])
    with pytest.raises(FailedError, match=r"its environment .* is not there; make it with ci/rivals/setup genai"):
        run("genai", "ci.rivals.workers.genai", [])
    with pytest.raises(FailedError, match="took too long"):
        run(None, "timeit", ["-n", "1", "import time; time.sleep(60)"], seconds=0.5)


def test_a_worker_answers_line_by_line_and_says_why_it_ended(tmp_path):
    job = {"model": "none.onnx", "batch": 1, "past": 0, "new": 1, "runs": 1, "warmup": 1, "threads": 1, "vocab": 9}
    job |= {"answer": str(tmp_path / "answer.npy")}
    lost = Worker(None, "posexport.bench.workers.onnx", [json.dumps(job)])
    with pytest.raises(FailedError, match=r"none.onnx"):
        lost.ask("begin")
    late = Worker(None, "timeit", ["-n", "1", "import time; time.sleep(60)"], seconds=0.5)
    with pytest.raises(FailedError, match="took too long"):
        late.ask("begin")
    silent = Worker(None, "this", [])
    with pytest.raises(FailedError, match="without an answer"):
        silent.ask("begin")
    for worker in (lost, late, silent):
        worker.kill()  # has ended: nothing happens


def test_a_reason_names_no_folder_of_this_machine():
    missing = Path.cwd() / "nowhere"
    with pytest.raises(FailedError) as caught:
        run(None, "timeit", ["-n", "1", f"open({str(missing)!r})"])
    assert str(caught.value).endswith("'nowhere'")


def test_a_recipe_is_made_once_and_replaces_its_elder(monkeypatch):
    ran = []

    def fake(*command):
        *_, arguments = command
        ran.append(arguments)
        if "bad" in arguments:
            raise FailedError("no")
        Path(arguments[-1], "file").write_text("x")
        return Ended("", 5, 1.5)

    monkeypatch.setattr(recipes, "run", fake)
    checkpoint = Recipe(name="weights", module="m", arguments=(OUT,))
    recipe = Recipe(name="graph", module="m", arguments=("{checkpoint}", OUT), checkpoint=checkpoint)
    first = make(recipe)
    assert (first.seconds, first.peak) == (1.5, 5)
    assert make(recipe) == first
    assert len(ran) == 2
    assert ran[1][0] == str(checkpoint.folder.absolute())
    monkeypatch.setattr(recipes, "code", lambda: "changed")
    second = make(recipe)
    assert second.folder != first.folder
    assert not first.folder.exists()
    with pytest.raises(FailedError):
        make(Recipe(name="other", module="m", arguments=("bad", OUT)))
    assert sorted(path.name.rpartition("-")[0] for path in recipes.CACHE.iterdir()) == ["graph", "weights"]


@pytest.mark.parametrize("name", checkpoints.CONFIGS)
def test_checkpoints_are_as_transformers_stores_them(name, monkeypatch, tmp_path):
    """Our reader refuses a tensor too many or too few, and a wrong shape."""
    config = checkpoints.CONFIGS[name]
    tiny = {key: TINY.get(key, value) for key, value in config.items()}
    monkeypatch.setitem(checkpoints.CONFIGS, name, tiny)
    checkpoints.write(name, tmp_path)
    source = load_source(str(tmp_path), LoadOptions())
    assert len(list(source.module.parameters())) >= 19


@pytest.mark.all
def test_our_graph_and_our_definition_agree_step_by_step():
    """Both workers as they are, with a cache: a wrong mask, past or token would make the answers differ."""
    sizes = ("vocab=29", "layers=2", "hidden=20", "heads=5", "feedforward=12")
    ours = candidates.convert("decoder-rope", *candidates.settings(sizes), vocab=29)
    case = Case(
        model="m",
        candidates=[ours, candidates.eager(ours)],
        points=[Point(batch=2, past=5, new=1), Point(new=3)],
        budget=SamplingBudget(runs=3, least=3),
    )
    document = bench("models", [case], Conditions(rounds=1, threads=1))
    for result in document.results:
        graph, eager = result.figures
        assert graph.failed is eager.failed is None
        assert eager.difference is not None
        assert eager.difference < 1e-4
        assert (graph.export_seconds or 0) > 0
    assert document.versions["torch"]


@pytest.mark.all
def test_the_command_writes_its_document():
    arguments = "encoder-nope --set layers=1 --length 4 --batch 2 --rounds 1 --threads 1 --json -o found.json"
    done = CliRunner().invoke(group, ["bench", *arguments.split()])
    assert done.exit_code == 0, done.output
    document = msgspec.json.decode(Path("found.json").read_bytes(), type=Document)
    assert msgspec.json.decode(done.stdout, type=Document) == document
    (result,) = document.results
    assert result.point == Point(batch=2, new=4)
    assert len(result.figures[0].ratios) == 1  # two processes of the baseline, in turn
    assert document.machine.cores >= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give models to measure or a --suite"),
        (["encoder-nope", "--suite", "paper"], "give models to measure or a --suite"),
        (["encoder-nope", "--set", "layers=1", "--past", "4"], "--past is for decoders with a cache"),
        (["encoder-nop"], "did you mean encoder-nope"),
        (["encoder-nope", "--plot", "x.gif"], "must end in .png or .svg"),
        (["encoder-nope", "-o", "missing/x.json"], "is not a directory"),
        (["--suite", "paper", "--only", "nobody"], "leave no candidate"),
    ],
)
def test_bad_input_is_one_sentence(arguments, said):
    done = CliRunner().invoke(group, ["bench", *arguments])
    assert isinstance(done.exception, Exception)
    assert said in str(done.exception)


@pytest.mark.parametrize("target", ["cpu", "portable"])
@pytest.mark.parametrize("name", SUITES)
def test_suites_have_their_floor_first_and_no_name_twice(name, target):
    for case in SUITES[name](target):
        names = [who.name for who in case.candidates]
        assert len(set(names)) == len(names)
        # the baseline has no positions, or is what the others are alternatives to
        assert {"lowerings": "auto", "quantized": "float32"}.get(name, "nope") in names[0]
        folders = {who.recipe.folder for who in case.candidates if who.recipe}
        assert len({folder.name.rpartition("-")[0] for folder in folders}) == len(folders)


def test_rivals_are_chosen_by_name():
    (case,) = chosen(SUITES["decode"](), third_party=["genai"], only=[], points=[Point(past=3)])
    assert {who.third_party for who in case.candidates} == {None, "genai"}
    assert case.points == [Point(past=3)]
    (case,) = chosen(SUITES["decode"](), third_party=[], only=["alibi"], points=[])
    assert [who.name for who in case.candidates] == ["decoder-nope", "decoder-alibi"]


def test_points_suit_the_model():
    assert points([], [], [], cached=True) == [Point(past=512, new=1)]
    assert [p.new for p in points([], [], [], cached=False)] == [128, 512]
    assert points([7], [2, 3], [1], cached=True) == [Point(batch=b, past=1, new=7) for b in (2, 3)]
