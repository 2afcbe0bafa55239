"""The sample in a bundle: small, without PyTorch, and it catches a broken model."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import posexport
from posexport.base.spec import BATCH, ENCODER_SEQUENCE, SEQUENCE, InputSpec, Limits, OutputSpec
from posexport.errors import PosexportError
from posexport.proof.grid.grid import grid
from posexport.proof.grid.inputs import draw, token_mask
from posexport.proof.grid.point import GridPoint
from posexport.proof.sample import writer
from posexport.proof.sample.check import check_sample
from posexport.proof.sample.writer import LARGEST, SampleWriter
from posexport.run.bundle.manifest import SAMPLE
from posexport.sources.source import Source
from tests.parity_models import exported, prove, source, with_weights
from tests.small import proven
from tests.tolerances import allowed

#: a machine that has no PyTorch
WITHOUT_TORCH = """
import sys
for name in ("torch", "onnx", "onnxscript"):
    sys.modules[name] = None
from pathlib import Path
from posexport.proof.sample.check import check_sample
report = check_sample(Path(sys.argv[1]), threads=1)
sys.stdout.buffer.write(report.to_json())
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Source]:
    folder = tmp_path_factory.mktemp("sample")
    right = source("encoder-absolute", task="question-answering")
    model = exported(right, folder)
    writer = SampleWriter()
    assert prove(right, model.SerializeToString(), threads=1, sample=writer).passed
    writer.save(folder)
    return folder, right


def copy_of(bundle: Path, folder: Path) -> Path:
    for name in ("model.onnx", SAMPLE):
        (folder / name).write_bytes((bundle / name).read_bytes())
    return folder


def test_the_sample_passes_and_says_that_it_is_one(bundle: tuple[Path, Source]) -> None:
    report = check_sample(bundle[0], threads=1)
    assert report.passed, report.describe()
    assert report.scope == "sample"
    assert "this is the sample stored in the bundle" in report.describe()
    assert not report.summary().complete
    points = {(p.length, p.batch, p.padding) for p in report.points}
    assert len(points) <= 8
    assert {p.length for p in report.points} == {1, 2, 17, 19, 20, 21}
    assert [p.verdict for p in report.points if p.length == 21] == ["rejected"]
    assert {p.batch for p in report.points} == {1, 3}
    assert len({p.padding for p in report.points}) >= 3
    assert (bundle[0] / SAMPLE).stat().st_size <= LARGEST


def test_it_runs_without_torch(bundle: tuple[Path, Source]) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(bundle[0])], capture_output=True, check=True)
    report = json.loads(done.stdout)
    assert {point["verdict"] for point in report["points"]} == {"pass", "rejected"}


def test_it_catches_a_broken_model_without_torch(bundle: tuple[Path, Source], tmp_path: Path) -> None:
    folder = copy_of(bundle[0], tmp_path)
    model = onnx.load(folder / "model.onnx")

    def change(table: np.ndarray) -> np.ndarray:
        table[8] *= 1.01
        return table

    onnx.save(with_weights(model, "encoding.table", change), folder / "model.onnx")
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(folder)], capture_output=True, check=True)
    wrong = {point["length"] for point in json.loads(done.stdout)["points"] if point["verdict"] == "fail"}
    assert wrong == {17, 19, 20}


def test_its_errors_are_those_of_the_grid(bundle: tuple[Path, Source]) -> None:
    """At most 64 tokens and channels: here that is every number, so the errors are the same."""
    folder, right = bundle
    whole = prove(right, folder / "model.onnx", threads=1)
    known = {(p.where, p.output): p for p in whole.points if p.verdict == "pass"}
    for point in check_sample(folder, threads=1).points:
        if point.verdict == "pass":
            twin = known[point.where, point.output]
            assert point.tolerance == twin.tolerance
            # the truth was rounded to float32
            assert abs(point.error - twin.error) <= allowed("one rounding", np.float32)


def test_a_large_model_still_fits() -> None:
    """Long, with states to attend to, and with a vocabulary to answer over."""
    states = InputSpec(
        name="encoder_hidden_states", dtype="float32", axes=[BATCH, ENCODER_SEQUENCE, 768], role="values"
    )
    right = source("encoder-absolute", task="fill-mask")
    inputs = [*right.inputs, states]
    limits = Limits(trained_length=512, max_length=512, boundaries=[512])
    points = [p for p in grid(limits, inputs) if not p.must_be_rejected]
    writer = SampleWriter()
    wide = Source(
        name="wide",
        kind="builtin",
        module=right.module,
        inputs=inputs,
        outputs=right.outputs,
        limits=limits,
        encoding=None,
        task="fill-mask",
        sha256="",
    )
    writer.choose(points, wide)
    rng = np.random.default_rng(0)
    for point in points:
        truth = rng.standard_normal((point.batch, point.length, 61))
        writer.add(point, draw(point, inputs), [truth], [token_mask(point, inputs)])
    assert 2 <= len(writer.header.points) <= 7
    assert max(p.length for p in writer.header.points) == 512
    assert len(writer.encoded()) <= LARGEST


def test_of_a_batch_that_is_too_large_one_row_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Whisper large, whose proof ended without a sample: three recordings of 30 seconds have 4.6 MB."""
    monkeypatch.setattr("posexport.proof.sample.writer.LARGEST", 21_000)
    right = source("encoder-absolute", task="question-answering")
    model = exported(right, tmp_path)
    writer = SampleWriter()
    assert prove(right, model.SerializeToString(), threads=1, sample=writer, lengths=[17]).passed
    writer.save(tmp_path)
    report = check_sample(tmp_path, threads=1)
    assert report.passed, report.describe()
    points = {(p.length, p.batch, p.padding) for p in report.points if p.verdict != "rejected"}
    assert points == {(17, 1, "none")}
    onnx.save(with_weights(model, "encoding.table", lambda table: table * 1.01), tmp_path / "model.onnx")
    assert not check_sample(tmp_path, threads=1).passed


def test_a_missing_or_damaged_sample_is_one_sentence(bundle: tuple[Path, Source], tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match="carries no sample, verify it with --against SOURCE"):
        check_sample(tmp_path)
    folder = copy_of(bundle[0], tmp_path)
    whole = (folder / SAMPLE).read_bytes()
    for damaged in (whole[:100], b"", whole.replace(b'"precision', b'"pREcision'), whole + b"\0" * LARGEST):
        (folder / SAMPLE).write_bytes(damaged)
        with pytest.raises(PosexportError, match=r"not a parity sample|at most 2000000"):
            check_sample(folder)


def test_without_a_row_that_fits_a_bundle_has_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Granite 4 1B, whose states take 57 MB a row: its conversion ended after the whole proof."""
    monkeypatch.setattr("posexport.proof.sample.writer._choice", lambda *_: ([], 1))
    monkeypatch.setattr("posexport.proof.sample.writer._smallest_row", lambda *_: None)
    settings = {"layers": 1, "hidden": 20, "heads": 5, "vocab": 61}
    done = proven("encoder-nope", tmp_path / "b", settings=settings, lengths=[1, 17])
    assert any("sample" in remark for remark in done.remarks)
    assert not (tmp_path / "b" / SAMPLE).exists()
    with pytest.raises(PosexportError, match="carries no sample, verify it with --against"):
        posexport.verify(tmp_path / "b")


def test_a_point_with_a_large_input_is_no_substitute() -> None:
    """A point is replaced by one with padding of the same length only where that one fits."""
    inputs = [
        InputSpec(name="ids", axes=(BATCH, SEQUENCE), dtype="int64", role="tokens", size=5),
        InputSpec(name="sound", axes=(BATCH, "samples"), dtype="float32", role="values"),
    ]
    outputs = [OutputSpec(name="y", axes=(BATCH, SEQUENCE, 5))]
    small, large = (("samples", 100),), (("samples", 400_000),)
    points = [GridPoint(batch=3, length=n, sizes=small) for n in (1, 17)]
    points += [GridPoint(batch=3, length=17, padding="right", sizes=large)]
    assert writer._choice(points, inputs, outputs, writer.POINTS)[0] == [points[1], points[0]]
    points += [GridPoint(batch=3, length=17, padding="right", sizes=small)]
    assert points[-1] in writer._choice(points, inputs, outputs, writer.POINTS)[0]
