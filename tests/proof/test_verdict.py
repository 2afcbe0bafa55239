"""What a bundle may call itself: proven is the whole grid; the proof runs as `load` does, on the target's provider."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import onnxruntime
import pytest
from click.testing import CliRunner

import posexport
from posexport.cli import group
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.proof.choose import ProofOptions
from posexport.proof.grid import point as grid_point
from posexport.proof.report.record import verdict
from posexport.proof.report.report import Report
from posexport.proof.subjects.runner import Runner
from posexport.run.bundle.read import read

TINY = ("layers=1", "hidden=12", "heads=2", "feedforward=7", "vocab=11")
SETTINGS = [word for pair in TINY for word in ("--set", pair)]


def options(**given: Any) -> ConvertOptions:
    return ConvertOptions(settings=TINY, threads=1, **given)


@pytest.mark.all
def test_chosen_lengths_are_checked_and_not_proven(tmp_path: Path) -> None:
    arguments = ["convert", "decoder-alibi", *SETTINGS, "--length", "17", "-o", str(tmp_path / "b")]
    done = CliRunner().invoke(group, arguments)
    assert done.exit_code == 0, done.output
    assert done.output.rstrip().endswith("checked at 17 tokens, not proven")
    manifest = read(tmp_path / "b")
    assert (manifest.proven, manifest.proven_on, manifest.checked_lengths) == (False, [], [17])
    assert manifest.parity is not None
    assert not manifest.parity.complete


def test_the_whole_grid_is_proven(tmp_path: Path) -> None:
    done = convert("encoder-alibi", tmp_path / "b", options())
    assert done.manifest is not None
    assert (done.manifest.proven, done.manifest.proven_on, done.manifest.checked_lengths) == (True, ["cpu"], [])
    assert done.to_text().endswith(", proven up to 257 tokens")
    assert done.report is not None
    fits(done.report)


def fits(report: Report) -> None:
    """No line is wider than the terminal, no number is cut, sentences break at words, verdicts have colours."""
    for width in (100, 80, 60):
        text = report.to_text(width=width)
        assert max(map(len, text.splitlines())) <= width
        assert "\N{HORIZONTAL ELLIPSIS}" not in text
        assert " ".join(text.split()).endswith(" ".join(report.to_text().split())[-60:])
    assert "\x1b[1;32mpassed:\x1b[0m" in report.to_text(width=80, colour=True)
    assert "\x1b" not in report.to_text(width=80)


def test_skipped_points_are_not_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_point, "available", lambda: 10_000_000)
    done = convert("encoder-alibi", tmp_path / "b", options())
    assert done.manifest is not None
    assert done.report is not None
    assert done.good
    assert any(point.verdict == "skipped" for point in done.report.points)
    assert (done.manifest.proven, done.manifest.proven_on) == (False, [])
    assert done.manifest.parity is not None
    assert not done.manifest.parity.complete
    last = done.to_text().splitlines()[-1]
    assert "proven except " in last
    assert "needs about" in last


def test_what_was_not_checked_or_missed_is_not_proven() -> None:
    assert verdict(None).words == "NOT proven: nothing was checked"
    missed = Report(scope="grid", provider="cpu", precision="fp32", points=[])
    assert (verdict(missed).proven, verdict(missed).words) == (False, "NOT proven: parity was missed")


class Recorded(onnxruntime.SessionOptions):  # type: ignore[misc]
    """Options that say what they were given."""

    made: ClassVar[list["Recorded"]] = []

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, str] = {}
        Recorded.made.append(self)

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value
        super().add_session_config_entry(key, value)

    def told(self) -> dict[str, Any]:
        names = [name for name in dir(onnxruntime.SessionOptions) if not name.startswith("_")]
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if not callable(value)} | self.entries


def test_the_proof_opens_a_bundle_as_load_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert("encoder-alibi", tmp_path / "b", options(verify=False))
    monkeypatch.setattr(onnxruntime, "SessionOptions", Recorded)
    monkeypatch.setattr(Recorded, "made", [])
    opened = posexport.load(tmp_path / "b", threads=1)
    Runner(
        tmp_path / "b" / "model.onnx",
        inputs=[spec.name for spec in opened.inputs],
        outputs=[spec.name for spec in opened.outputs],
        threads=1,
    )
    in_use, in_proof = (made.told() for made in Recorded.made)
    assert in_proof.pop("session.intra_op.allow_spinning") == "0"
    assert in_use == in_proof
    assert in_use["session.set_denormal_as_zero"] == "1"
    assert "graph_optimization_level" in in_use


#: whether this thread keeps denormals; by bits, because a comparison, too, may take one as 0
ARE_KEPT = """
import numpy as np
tiny = np.array([713624], np.int32).view(np.float32)  # 1e-39
are_kept = lambda: bool((tiny * np.float32(1)).view(np.int32)[0] != 0)
"""


@pytest.mark.all
def test_the_thread_s_denormals_are_as_before_around_every_run(tmp_path: Path) -> None:
    """0 while ONNX Runtime computes, and kept in everything else that a program computes, the reference included."""
    convert("encoder-alibi", tmp_path / "b", options(verify=False))
    code = f"""
{ARE_KEPT}
import sys
from pathlib import Path
import posexport
session = posexport.load({str(tmp_path / "b")!r}, threads=1)  # the process's first, which would decide for the thread
assert are_kept()
from posexport.run import chain
from posexport.proof import choose
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
seen = dict()
def watch(name, cls, method):
    inner = getattr(cls, method)
    def outer(self, *rest, **more):
        seen.setdefault(name, set()).add(are_kept())
        return inner(self, *rest, **more)
    setattr(cls, method, outer)
watch("graph", chain.Link, "feeds")
session.run(dict(input_ids=[[5, 2, 7]]))
source = load_source("encoder-alibi", LoadOptions(settings={TINY!r}))
watch("definition", type(source.module), "forward")
path = Path({str(tmp_path / "b" / "model.onnx")!r})
report = choose.prove_model(source, path, choose.ProofOptions(lengths=[2, 17], threads=1))
print(report.passed, seen["graph"], seen["definition"], are_kept())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "True {False} {True} True"


def test_cuda_that_does_not_load_is_proven_on_the_cpu_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(provider: str) -> None:
        raise PosexportError(f"no {provider} here")

    monkeypatch.setattr("posexport.conversion.convert.check_loads", missing)
    arguments = ["convert", "encoder-nope", *SETTINGS, "--target", "cuda", "-o", str(tmp_path / "b")]
    done = CliRunner().invoke(group, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    assert "proven on cpu; cuda did not load here: no cuda here" in done.stderr
    manifest = json.loads(done.stdout)["manifest"]
    assert (manifest["target"], manifest["proven"], manifest["proven_on"]) == ("cuda", True, ["cpu"])
    strict = CliRunner().invoke(group, [*arguments, "--provider", "cuda", "--force"])
    assert isinstance(strict.exception, PosexportError)  # exit code 2
    assert "no cuda here" in str(strict.exception)


def test_a_target_that_loads_is_what_the_proof_runs_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("posexport.conversion.convert.check_loads", asked.append)

    def proof(_: object, __: object, wishes: ProofOptions) -> Report:
        asked.append(wishes.provider)
        raise PosexportError("far enough")

    monkeypatch.setattr("posexport.proof.choose.prove_model", proof)
    with pytest.raises(PosexportError, match="far enough"):
        convert("encoder-nope", tmp_path / "b", options(target="cuda"))
    assert asked == ["cuda", "cuda"]
