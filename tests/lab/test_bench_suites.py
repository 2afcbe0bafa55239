"""``ci/lab/bench``: suites are fair to others, what they export is theirs, and what they do not do says why."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from ci.lab.bench_suites import __main__ as main
from ci.lab.bench_suites import candidates, checkpoints, curves, recipes, suites
from ci.lab.bench_suites.candidates import Checkpoint, Planned
from ci.lab.bench_suites.curves import curve, exponent, is_curve, megabytes, milliseconds
from ci.lab.bench_suites.markdown import tables
from ci.lab.bench_suites.reasons import reason
from ci.lab.bench_suites.recipes import OUT, Recipe, make, pinned
from ci.lab.bench_suites.suites import SUITES, Case, chosen
from posexport.inspect.bench.measurement import Conditions, SamplingBudget
from posexport.inspect.bench.processes import Ended, FailedError
from posexport.inspect.bench.records import Document, Figure, Point, Result, figure
from posexport.inspect.bench.run import machine
from tests.tolerances import agree, allowed

ROOT = Path(__file__).parents[2]
#: the benchmarks' documents among the recorded results: those that name their suite
RESULTS = sorted(
    path for path in (ROOT / "ci" / "results").glob("*.json") if "suite" in msgspec.json.decode(path.read_bytes())
)
#: in place of transformers: a class of which the test knows that it is not posexport's
TRANSFORMERS = """
import json
import pathlib
import torch

__version__ = "9.9"


class AutoConfig:
    @staticmethod
    def from_pretrained(path):
        config = AutoConfig()
        config.architectures = json.loads(pathlib.Path(path, "config.json").read_text())["architectures"]
        return config


class TheirModel(torch.nn.Module):
    @classmethod
    def from_pretrained(cls, path, dtype, output_loading_info):
        assert output_loading_info
        model = cls().to(dtype)
        model.train()
        return model, {"unexpected_keys": ["b.left", "a.left"]}

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(9, 4)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, input_ids=None, attention_mask=None, head_mask=None):
        return (self.drop(torch.erf(self.words(input_ids))) * attention_mask[..., None],)
"""
EXPORT = """
import runpy, sys
sys.argv = ["torch.py", *sys.argv[1:]]
runpy.run_module("ci.lab.rivals.exporters.torch", None, "__main__", alter_sys=True)
print(*sorted(name for name in sys.modules if name.split(".")[0] in ("ci", "posexport")))
"""


@pytest.mark.all
def test_torch_onnx_export_gets_the_class_of_transformers(tmp_path):
    import onnx
    import onnxruntime

    (tmp_path / "transformers.py").write_text(TRANSFORMERS)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["TheirModel"]}))
    path = tmp_path / "model.onnx"
    command = [sys.executable, "-c", EXPORT, str(tmp_path), str(path)]
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    *_, modules = done.stdout.splitlines()
    rivals = "ci.lab.rivals"
    assert modules.split() == ["ci", "ci.lab", rivals, f"{rivals}.exporters", f"{rivals}.exporters.loading"]
    assert "remark: transformers 9.9 does not read a.left and 1 more" in done.stdout.splitlines()
    graph = onnx.load(path)
    assert "Erf" in [node.op_type for node in graph.graph.node]
    assert "Dropout" not in [node.op_type for node in graph.graph.node]
    assert {node.domain for node in graph.graph.node} == {""}
    session = onnxruntime.InferenceSession(path)
    assert [arg.name for arg in session.get_inputs()] == ["input_ids", "attention_mask"]
    for shape in ((2, 17), (3, 5)):  # batch and length are dynamic
        fed = {"input_ids": np.ones(shape, np.int64), "attention_mask": np.ones(shape, np.int64)}
        assert session.run(None, fed)[0].shape == (*shape, 4)


@pytest.mark.parametrize("case", SUITES["rivals"](), ids=lambda case: case.model)
def test_what_is_said_to_be_of_others_is_exported_by_others(case):
    """No candidate of another tool is made by our code, nor in our environment."""
    found = {
        who.name: who for who in case.candidates if who.third_party is not None and "our definition" not in who.name
    }
    assert {"transformers, PyTorch eager", "torch.onnx.export", "optimum-onnx", "mobius-onnx"} <= set(found)
    for who in found.values():
        if who.environment is None:
            assert who.recipe
            assert who.recipe.environment
            assert pinned(who.recipe.environment)
            assert not who.recipe.module.startswith(("posexport", "ci.lab.bench"))
    # transformers 5 reads relative keys as absolute positions: the reference must not
    environment = "optimum" if "relative" in case.model else "transformers"
    assert found["transformers, PyTorch eager"].environment == environment
    assert found["torch.onnx.export"].recipe.environment == environment
    assert pinned("optimum")["transformers"].startswith("4.")
    assert pinned("transformers")["transformers"].startswith("5.")


def test_exporters_that_read_no_encoder_alone_get_a_whole_checkpoint(tmp_path):
    t5 = Checkpoint.drawn("t5")
    (mobius,) = t5.mobius()
    optimum = t5.optimum()
    for who, model in ((mobius, "encoder/model.onnx"), (optimum, "encoder_model.onnx")):
        assert who.recipe.checkpoint.name == "checkpoint-t5-with-decoder"
        assert (who.model, who.weights) == (model, "t5")
    # nobody draws a decoder for the user's: no row says that these exporters fail
    (tmp_path / "config.json").write_text(json.dumps(checkpoints.T5))
    names = [who.name for who in Checkpoint.there(tmp_path).third_party_exporters()]
    assert names == ["torch.onnx.export", "transformers.exporters", "transformers.exporters fused"]
    (tmp_path / "config.json").write_text(json.dumps(checkpoints.BERT))
    names = [who.name for who in Checkpoint.there(tmp_path).third_party_exporters()]
    assert {"torch.onnx.export", "optimum-onnx", "mobius-onnx"} < set(names)
    assert "torch.onnx.export" not in [who.name for who in Checkpoint.drawn("llama").third_party_exporters()]


def test_a_recipe_is_made_once_and_replaces_its_elder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    ran = []

    def fake(_module: str, arguments: list[str], **_: object) -> Ended:
        ran.append(arguments)
        if "bad" in arguments:
            raise FailedError("no")
        Path(arguments[-1], "file").write_text("x")
        return Ended("noise\nremark: it reads half\nremark: twice\n", 5, 1.5)

    monkeypatch.setattr(recipes, "run", fake)
    checkpoint = Recipe(name="weights", module="m", arguments=(OUT,))
    recipe = Recipe(name="graph", module="m", arguments=("{checkpoint}", OUT), checkpoint=checkpoint)
    first = make(recipe)
    assert (first.seconds, first.peak, first.remark) == (1.5, 5, "it reads half; twice")
    assert make(recipe) == first
    assert len(ran) == 2
    assert ran[1][0] == str(checkpoint.folder.absolute())
    monkeypatch.setattr(recipes, "_code", lambda _: "changed")
    second = make(recipe)
    assert second.folder != first.folder
    assert not first.folder.exists()
    with pytest.raises(FailedError):
        make(Recipe(name="other", module="m", arguments=("bad", OUT)))
    assert sorted(path.name.rpartition("-")[0] for path in recipes.CACHE.iterdir()) == ["graph", "weights"]


def test_an_environment_that_is_not_there_is_the_reason(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    candidate = Checkpoint.drawn("llama").mobius()[0].made()
    assert candidate.failed == (
        "the export failed: its environment .cache/rivals/optimum is not there; make it with "
        "ci/lab/rivals/setup optimum"
    )


def test_versions_of_others_are_told():
    assert {"optimum", "transformers", "torch"} < set(pinned("optimum"))
    versions = {"onnxruntime": "1.32.0", "optimum: optimum": "2.1.0", "optimum: onnxruntime": "1.31.1"}
    text = tables(_document("rivals", _result(8, _figure("nope", 1.0)), versions=versions))
    assert "ONNX Runtime 1.32.0, " in text
    assert text.endswith("Environments of third-party exporters: optimum (optimum 2.1.0, onnxruntime 1.31.1).")


def _figure(name: str, ms: float, baseline_ms: float | None = 1.0, **more: object) -> Figure:
    return figure(
        name,
        [[ms]],
        [[ms / baseline_ms]] if baseline_ms else (),
        **{"by_posexport": False, "growth": 7_000_000, "above": 3_000_000, **more},
    )


def _result(length: int, *figures: Figure, reason: str | None = None, model: str = "m") -> Result:
    name = figures[0].candidate
    return Result(
        model=model,
        point=Point(new=length),
        baseline=name,
        valid=reason is None,
        reason=reason,
        figures=list(figures),
    )


def _document(suite: str, *results: Result, **more: object) -> Document:
    known = {"threads": 2, "provider": "cpu", "rounds": 1, "machine": machine(), "commit": "abc"}
    known |= {"created": "2026-11-21T06:07:24+00:00", "seconds": 600.0, "versions": {}}
    return Document(suite=suite, results=list(results), **{**known, **more})


@pytest.mark.parametrize("suite", ["rivals", "paper", "lowerings", "growth"])
def test_a_point_that_is_not_valid_has_no_figures(suite):
    """Neither times nor memory nor ratios, wherever the table has them; what fails there still does."""
    noisy = "two runs of the baseline differ by 12%, more than 5%"
    broken = Figure(candidate="encoder-x broken", by_posexport=False, failed="no")
    wrong = _figure("encoder-x wrong", 777.0, wrong=True, difference=0.5)

    def at(length: int, ms: float, said: str | None = None) -> Result:
        two = _figure("encoder-x auto", ms), _figure("encoder-x formula", ms + 1)
        return _result(length, *two, broken, wrong, reason=said)

    results = [at(8, 11.0), at(16, 333.0, noisy), at(32, 44.0), at(64, 55.0)]
    results = results if suite == "growth" else results[:3]
    text = tables(_document(suite, *results))
    assert "44.0" in text
    assert "333" not in text
    assert "334" not in text
    assert "777" not in text
    assert "—" in text
    assert re.search(r"\\\* not valid: (m, )?length 16: two runs of the baseline differ by 12%", text)
    assert "fails [" in text
    assert "WRONG [" in text
    if suite == "growth":
        quiet = [result.quiet for result in results]
        for value in (milliseconds, megabytes):
            assert [length for length, _ in curve(quiet, "encoder-x auto", value)] == [8, 32, 64]
        assert curves.draw(_document(suite, *results), ".svg").startswith(b"<?xml")


def test_a_chart_of_a_noisy_machine_has_no_curves():
    results = [_result(length, _figure("nope", 1.0), reason="noise") for length in (8, 16, 32, 64)]
    assert curves.draw(_document("growth", *results), ".svg").startswith(b"<?xml")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"ms": 1.0}, None),
        ({"failed": "the export failed: a.b.TheError: this. And that."}, "the export failed: TheError: this"),
        ({"failed": "x" * 400}, "x" * 199 + "…"),
        ({"left_out": "it needs 26.8 GB"}, "it needs 26.8 GB"),
        (
            {"wrong": True, "difference": 0.1307, "reference": "eager"},
            "its answer differs from that of eager by 0.1 of the largest value",
        ),
        (
            {"wrong": True, "remark": "it reads half"},
            "its answer is not finite or has other axes than the first one with the same weights; it reads half",
        ),
    ],
)
def test_a_cell_without_figures_has_a_reason(found, said):
    assert reason(Figure(candidate="x", by_posexport=False, **found)) == said


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_failure_in_the_tables_says_why_and_every_point_is_valid(path):
    """Of the tables that ci/docs_tables.py makes of the recorded results."""
    document = msgspec.json.decode(path.read_bytes(), type=Document)
    text = tables(document)
    table = [line for line in text.splitlines() if line.startswith("|")]
    notes = dict(re.findall(r"^\[(\d+)\] `(.+)`", text, re.MULTILINE))
    cells = [cell for line in table[2:] for cell in line.strip("| ").split(" | ")]
    marked = [cell for cell in cells if re.match("fails|WRONG", cell)]
    failed = [f for result in document.results for f in result.figures if f.failed is not None or f.wrong]
    assert len(marked) == len(failed)
    assert all(re.fullmatch(r"(fails|WRONG) \[\d+\]", cell) for cell in marked)
    assert {re.search(r"\d+", cell)[0] for cell in marked} <= set(notes)
    for result in document.results:
        assert all(f.ms is None for f in result.quiet.figures) or result.valid
    # what failed of another tool must not be an operator of ours
    assert "posexport." not in "".join(notes.values())
    assert "floor" not in text


def test_the_script_of_tables_reads_every_result(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "ci")
    module = importlib.import_module("docs_tables")
    assert {path.name for path in RESULTS} == set(module.SUITES.values())
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    assert "`ci/lab/bench growth -o" in module.TABLES["growth"]()


@pytest.mark.parametrize("target", ["cpu", "portable"])
@pytest.mark.parametrize("name", SUITES)
def test_suites_have_their_floor_first_and_no_name_twice(name, target):
    for case in SUITES[name](target):
        names = [who.name for who in case.candidates]
        assert len(set(names)) == len(names)
        # the baseline has no positions, or is what the others are alternatives to
        baselines = {"lowerings": "auto", "quantized": "float32", "states": "posexport", "ways": "PyTorch"}
        assert baselines.get(name, "nope") in names[0]
        folders = {who.recipe.folder for who in case.candidates if who.recipe}
        assert len({folder.name.rpartition("-")[0] for folder in folders}) == len(folders)


def test_rivals_are_chosen_by_name():
    (case,) = chosen(SUITES["decode"](), third_party=["genai"], only=[], points=[Point(past=3)])
    assert {who.third_party for who in case.candidates} == {None, "genai"}
    assert case.points == [Point(past=3)]
    (case,) = chosen(SUITES["decode"](), third_party=[], only=["alibi"], points=[])
    assert [who.name for who in case.candidates] == ["decoder-nope", "decoder-alibi"]


def test_ours_are_made_for_the_target():
    def targets(cases: list[Case]) -> set[str]:
        recipes_ = [who.recipe for case in cases for who in case.candidates if who.recipe and who.third_party is None]
        options = [recipe.arguments for recipe in recipes_ if recipe.module == "posexport"]
        assert all("--no-verify" in each for each in options)
        return {each[each.index("--target") + 1] for each in options}

    assert targets(suites.paper("cuda")) == {"cuda"}
    assert targets(suites.paper("portable")) == {"portable"}
    assert targets(suites.decode("cpu")) == {"cpu", "portable"}
    names = [who.name for who in suites.decode("cpu")[0].candidates]
    assert {"decoder-nope", "decoder-nope static", "posexport static"} <= set(names)


def test_ratios_of_the_paper():
    def at(length: int, reason: str | None = None) -> Result:
        made = {"nodes": 280, "export_seconds": 14.2, "export_peak": 1.3e9}
        baseline = _figure("encoder-nope", 200.0, 200.0, **{**made, "export_peak": 1_300_000_000})
        rope = _figure("encoder-rope", 210.0 + length, 200.0, nodes=300)
        return _result(length, baseline, rope, reason=reason)

    found = tables(_document("paper", at(10), at(20, reason="noise")))
    head, _, baseline, rope, *rest = found.splitlines()
    assert head == "|  | 10 | 20 \\* | nodes | export, no proof |".replace("|  |", "| |")
    assert baseline == "| `nope`, baseline without positions | 200 ms | — | 280 | 14 s, 1300 MB |"
    assert rope == "| `rope` | 1.10 | — | 300 | |"
    assert "not valid: length 20: noise." in rest[-1]


def test_lowerings_stand_beside_what_the_planner_takes():
    def at(length: int) -> Result:
        auto = _figure("encoder-alibi auto", 20.0, 20.0)
        formula = _figure("encoder-alibi formula", 25.0, 20.0)
        return _result(length, auto, formula, model="encoder-alibi, 2 layers")

    text = tables(_document("lowerings", at(32), at(512))).splitlines()
    assert text[0] == "| two layers | auto | formula |"
    assert text[2] == "| alibi, 32 | 20.0 ms | 1.25 |"
    assert text[3].startswith("| alibi, 512 |")


def test_who_is_wrong_or_fails_is_not_the_quickest():
    ours = _figure("posexport", 220.0, 200.0)
    fast = _figure(
        "fast", 50.0, 200.0, by_posexport=False, wrong=True, difference=0.13, reference="eager", remark="odd"
    )
    slow = _figure("slow", 300.0, 200.0, by_posexport=False)
    broken = Figure(
        candidate="broken", by_posexport=False, failed="the export failed: a.b.c.TheError: no `x`. Hint: none"
    )
    baseline = _figure("encoder-nope", 200.0, 200.0)
    shape = _figure("encoder-nope of T5's shape", 100.0, 100.0)
    results = [
        _result(128, baseline, fast, slow, ours, broken, model="bert-absolute"),
        _result(128, shape, _figure("slow", 90.0, 100.0), model="t5"),
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
        small = _figure("baseline", length**2 / 1e4, length**2 / 1e4, above=12 * length**2)
        ours = _figure("ours", length**2 / 5e3, None, above=1000 * length)
        results.append(_result(length, large if length > 1000 else small, ours))
    return _document("growth", *results)


def test_growth_by_length():
    document = _growing(256, 512, 1024, 2048)
    assert is_curve(document.results)
    assert curve(document.results, "baseline", milliseconds) == [(256, 6.5536), (512, 26.2144)]
    agree(exponent(curve(document.results, "ours", milliseconds)), 2, "attention", np.float64)
    agree(exponent(curve(document.results, "ours", megabytes)), 1, "attention", np.float64)
    assert exponent([(1, 2.0)]) is None
    lines = tables(document).splitlines()
    assert lines[2] == "| 256 | 6.6 (1.00), 1 MB | 13.1, 0 MB |"
    assert lines[4] == "| 1024 | not measured [1] | 210, 1 MB |"
    assert "ours: time with length^2.0, memory with length^1.0." in lines[7]
    assert lines[9] == "[1] `it needs 9 GB`"
    assert not is_curve(_growing(256, 512).results)
    assert curves.draw(document, ".svg").startswith(b"<?xml")


def test_what_does_not_fit_is_left_out():
    large, small = (
        Planned(name=name, recipe=None, model="", vocab=2, weights=name, pair_bytes=size)
        for name, size in (("large", 1000), ("small", 10))
    )
    case = Case(model="m", candidates=[small, large], points=[])
    assert main.too_large(case, Point(new=10), 10**6) == {}
    assert main.too_large(case, Point(new=10), 50_000) == {"large": "it needs 0.0 GB, of 0.0 GB free"}
    # beside a baseline that takes what there is
    beside = Case(model="m", candidates=[large, large], points=[])
    assert (
        "and the baseline 100.0 GB, of 150.0 GB free" in main.too_large(beside, Point(new=10**4), 150 * 10**9)["large"]
    )


@pytest.mark.parametrize("missing", [8, 16])
def test_a_run_goes_on_with_what_is_missing(tmp_path, monkeypatch, missing):
    """What is valid, of the same candidates and the same commit, is not measured again, and is written all the same."""
    monkeypatch.setattr(main, "commit", lambda: "abc")
    case = Case(
        model="m",
        candidates=[Planned(name="nope", recipe=None, model="x", vocab=2, weights="w")],
        points=[Point(new=8), Point(new=16)],
    )
    noisy, path = _result(missing, _figure("nope", 1.0), reason="noise"), tmp_path / "found.json"
    path.write_bytes(_document("paper", _result(24 - missing, _figure("nope", 1.0)), noisy).to_json())
    conditions = Conditions(rounds=1, threads=2)
    before = main.earlier(path, conditions)
    measured = []

    def measure(run: main.Run, _model: str, _candidates: object, point: Point, *_: object, **__: object) -> None:
        measured.append(point.new)
        run.results.append(noisy)

    monkeypatch.setattr(main.Run, "measure", measure)
    document = main.measure("paper", [case], conditions, path, before)
    assert measured == [missing]
    assert [result.point.new for result in document.results] == [8, 16]
    written = msgspec.json.decode(path.read_bytes(), type=Document)
    assert [result.point.new for result in written.results] == [8, 16]
    with pytest.raises(Exception, match="of another commit or has other options"):
        main.earlier(path, Conditions(rounds=1, threads=1))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["nowhere"], "nowhere is no directory"), (["paper", "--only", "nobody"], "leave no candidate")],
)
def test_bad_input_is_one_sentence(arguments, said):
    done = CliRunner().invoke(main.main, arguments)
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.all
def test_our_graph_and_our_definition_agree_step_by_step(monkeypatch, tmp_path):
    """Both workers as they are, with a cache: a wrong mask, past or token would make the answers differ."""
    monkeypatch.chdir(tmp_path)
    sizes = ("vocab=29", "layers=2", "hidden=20", "heads=5", "feedforward=12")
    ours = candidates.convert("decoder-rope", *candidates.settings(sizes), vocab=29)
    case = Case(
        model="m",
        candidates=[ours, candidates.eager(ours)],
        points=[Point(batch=2, past=5, new=1), Point(new=3)],
        budget=SamplingBudget(runs=3, least=3),
    )
    document = main.measure("models", [case], Conditions(rounds=1, threads=1), None, [])
    for result in document.results:
        graph, eager = result.figures
        assert graph.failed is eager.failed is None
        assert eager.difference is not None
        assert eager.difference <= allowed("model in float32", np.float32, 8)
        assert (graph.export_seconds or 0) > 0
    assert document.versions["torch"]


@pytest.mark.all
def test_a_layer_from_its_file_to_the_chart(tmp_path, monkeypatch):
    """The real workers: a layer at four short lengths, its answers and memory."""
    monkeypatch.chdir(tmp_path)
    (case,) = suites.attention("portable")
    points = [Point(new=length) for length in (16, 24, 32, 48)]
    quick = SamplingBudget(warmup=1, runs=2, least=2, seconds=0.1)
    case = Case(model=case.model, candidates=case.candidates, points=points, budget=quick)
    document = main.measure("attention", [case], Conditions(rounds=1, threads=1), None, [])
    for result in document.results:
        baseline, ours, published = result.figures
        assert baseline.failed is ours.failed is published.failed is None
        assert (baseline.nodes, published.wrong, ours.wrong) == (1, False, False)
        assert published.difference is not None
        assert published.difference <= allowed("model in float32", np.float32)
        assert baseline.above is not None
        assert baseline.growth is not None
        held = 4 * 12 * 64 * 4 * result.point.new
        assert baseline.growth - baseline.above in (held, baseline.growth)
    assert is_curve(document.results)
    assert curves.draw(document, ".svg")
