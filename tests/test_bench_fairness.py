"""``posexport bench`` is fair to others: what they export is theirs, and what they do not do says why."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from posexport.bench import checkpoints, recipes
from posexport.bench.candidates import Checkpoint
from posexport.bench.chart import draw
from posexport.bench.curves import curve, megabytes, milliseconds
from posexport.bench.environments import Ended, pinned
from posexport.bench.machine import machine
from posexport.bench.markdown import tables
from posexport.bench.reasons import reason
from posexport.bench.recipes import OUT, Recipe, make
from posexport.bench.records import Document, Figure, Point, Result, figure
from posexport.bench.suites import SUITES

ROOT = Path(__file__).parent.parent
#: results that are no benchmarks' documents
OTHER_RESULTS = {"rates.json", "clients.json", "costs.json", "half.json", "precision.json"}
RESULTS = sorted(path for path in (ROOT / "ci" / "results").glob("*.json") if path.name not in OTHER_RESULTS)
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
runpy.run_module("ci.rivals.exporters.torch", None, "__main__", alter_sys=True)
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
    assert modules.split() == ["ci", "ci.rivals", "ci.rivals.exporters", "ci.rivals.exporters.loading"]
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
            assert not who.recipe.module.startswith("posexport") or "exporters" in who.recipe.module
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


def test_what_an_exporter_remarks_is_kept(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipes, "run", lambda *_: Ended("noise\nremark: it reads half\nremark: twice\n", 5, 1.5))
    recipe = Recipe(name="graph", module="m", arguments=(OUT,), environment="optimum")
    assert make(recipe).remark == make(recipe).remark == "it reads half; twice"


def test_versions_of_others_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pinned("optimum") == {}
    (tmp_path / "ci" / "rivals").mkdir(parents=True)
    (tmp_path / "ci" / "rivals" / "optimum.txt").write_text("# newest\noptimum==2.1.0 # needs ==4\ntorch==2.13.0\n")
    assert pinned("optimum") == {"optimum": "2.1.0", "torch": "2.13.0"}
    versions = {"onnxruntime": "1.32.0", "optimum: optimum": "2.1.0", "optimum: onnxruntime": "1.31.1"}
    text = tables(_document("rivals", _result(8, _figure("nope", 1.0)), versions=versions))
    assert "ONNX Runtime 1.32.0, " in text
    assert text.endswith("Environments of third-party exporters: optimum (optimum 2.1.0, onnxruntime 1.31.1).")


def _figure(name: str, ms: float, **more: object) -> Figure:
    return figure(name, [[ms]], [[ms]], **{"by_posexport": False, "growth": 7_000_000, "above": 3_000_000, **more})


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
    assert draw(_document(suite, *results), ".svg").startswith(b"<?xml")


def test_a_chart_of_a_noisy_machine_has_no_curves():
    results = [_result(length, _figure("nope", 1.0), reason="noise") for length in (8, 16, 32, 64)]
    assert draw(_document("growth", *results), ".svg").startswith(b"<?xml")


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


def test_the_script_of_tables_reads_every_result():
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "ci" / "docs_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert {path.name for path in RESULTS} == set(module.SUITES.values())
