"""The command line as a user meets it: help, results on stdout, exit codes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import onnx_ir as ir
import pytest
from click.testing import CliRunner

from posexport.cli import COMMANDS, group
from posexport.conversion.export import build
from posexport.run.bundle.read import read
from tests.command import posexport
from tests.tiny_bundle import write_bundle

TINY = ["--set", "layers=1", "--set", "hidden=20", "--set", "feedforward=37", "--set", "vocab=61"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A proven bundle of a tiny relative model, made by the command."""
    target = tmp_path_factory.mktemp("bundles") / "relative"
    lengths = ["--length", "1", "--length", "17", "--length", "23"]
    done = posexport("convert", "encoder-relative-key", "-o", target, *TINY, "--set", "max_positions=23", *lengths)
    assert done.returncode == 0, done.stderr
    assert "proven" in done.stdout
    assert done.stderr == ""
    return target


def test_the_sample_is_verified_without_pytorch(bundle: Path) -> None:
    """As on a machine that has the extra onnxruntime alone."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'onnxscript', 'onnx_ir')));"
        f"sys.argv = ['posexport', 'verify', {str(bundle)!r}]; from posexport.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "this is the sample stored in the bundle" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    done = CliRunner().invoke(group, [name, "--help"])
    assert done.exit_code == 0
    assert "Example:" in done.output
    assert f"posexport {name}" in done.output


def test_verify_checks_the_stored_sample(bundle: Path) -> None:
    command = [sys.executable, "-m", "posexport", "verify", str(bundle)]  # the others run in this process
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "stored sample" in done.stdout


def test_verify_against_the_source_checks_the_grid(bundle: Path) -> None:
    source = ["--against", "encoder-relative-key", *TINY, "--set", "max_positions=23"]
    done = posexport("verify", bundle, *source, "--length", "5", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["scope"] == "grid"
    assert {point["length"] for point in report["points"]} >= {5}


def test_verify_against_another_source_is_a_finding(bundle: Path) -> None:
    source = ["--against", "encoder-relative-key", *TINY, "--set", "max_positions=23", "--set", "seed=9"]
    done = posexport("verify", bundle / "model.onnx", *source, "--length", "5")
    assert done.returncode == 1
    assert "FAIL" in done.stdout


def test_convert_json_is_one_document(tmp_path: Path) -> None:
    done = posexport("convert", "encoder-nope", "-o", tmp_path / "b", *TINY, "--length", "3", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["good"]
    assert found["manifest"]["checked_lengths"] == [3]
    assert msgspec.convert(found["manifest"], type(read(tmp_path / "b"))) == read(tmp_path / "b")


def test_an_unproven_bundle_says_so(tmp_path: Path) -> None:
    done = posexport("convert", "encoder-nope", "-o", tmp_path / "b", *TINY, "--no-verify")
    assert done.returncode == 0, done.stderr
    assert "NOT proven" in done.stdout
    assert not read(tmp_path / "b").proven


@pytest.mark.parametrize("keep", [False, True])
def test_a_miss_exits_1_and_leaves_nothing_unless_kept(
    keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = build.trace

    def mirrored(source: object, opset: int) -> object:
        model = real(source, opset)  # type: ignore[arg-type]
        for name, value in model.graph.initializers.items():
            if name.endswith("encoding.table"):
                value.const_value = ir.tensor(value.const_value.numpy()[::-1].copy())
        return model

    monkeypatch.setattr(build, "trace", mirrored)
    args = ["convert", "encoder-relative-key", "-o", str(tmp_path / "b"), *TINY, "--length", "17"]
    done = CliRunner().invoke(group, args + ["--keep-failed"] * keep)
    assert done.exit_code == 1
    assert "FAIL" in done.output
    assert (tmp_path / "b").exists() == keep
    assert [p.name for p in tmp_path.iterdir()] == ["b"] * keep
    if keep:
        assert not read(tmp_path / "b").proven
        assert "NOT proven" in done.output


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ["convert", "no-such-model", "-o", "out"],
            "neither a directory, a Hub id (org/name), a file.py:factory nor a built-in model",
        ),
        (["convert", "./nowhere", "-o", "out"], "no such directory: ./nowhere"),
        (["convert", "encoder-nope", "-o", "out", "--opset", "99"], "--opset 99 cannot be used"),
        (["convert", "encoder-nope", "-o", "out", "--provider", "tpu"], "unknown provider 'tpu'; known: cpu, cuda"),
        (["convert", "encoder-nope", "-o", "out", "--lowering", "fast"], "unknown lowering 'fast'"),
        (["convert", "encoder-nope", "-o", "out", "--task", "sing"], "unknown task 'sing'"),
        (
            ["convert", "encoder-absolute", "-o", "out", "--length", "200"],
            "200 can be compared: the model takes at most 128",
        ),
        (["verify", "nowhere"], "no such bundle or .onnx file: nowhere"),
        (["run", "nowhere", "--text", "x"], "nowhere"),
        (["list", "cats"], "'cats' is not one of"),
        (["convert", "encoder-nope"], "Missing option '-o'"),
        (["convert", "encoder-nope", "-o", "out", "--length", "0"], "0 is not in the range"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(args: list[str], sentence: str, tmp_path: Path) -> None:
    done = posexport(*args, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == [], "nothing half-written"


def test_an_existing_output_needs_force(bundle: Path) -> None:
    before = (bundle / "posexport.json").read_bytes()
    done = posexport("convert", "encoder-nope", "-o", bundle, *TINY, "--no-verify")
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert (bundle / "posexport.json").read_bytes() == before


@pytest.mark.parametrize("kind", ["encodings", "models", "ops", "providers", "tasks", "families"])
def test_list_shows_every_registry(kind: str) -> None:
    done = CliRunner().invoke(group, ["list", kind, "--json"])
    assert done.exit_code == 0
    rows = json.loads(done.output)
    assert rows
    assert all(row["name"] and row["what"] for row in rows)


@pytest.mark.all
def test_a_source_that_cannot_be_the_bundles_is_told_so(tmp_path: Path) -> None:
    sizes = ["--set", "layers=1", "--set", "hidden=20"]
    bundle = str(tmp_path / "b")
    table = ["encoder-relative-key", *sizes, "--set", "max_positions=23"]
    done = CliRunner().invoke(group, ["convert", *table, "-o", bundle, "--max-length", "20", "--no-verify"])
    assert done.exit_code == 0, done.output
    assert re.search(r"b: \d+\.\d kB, opset", done.stdout), "a small file has its size in kB"
    other = ["encoder-relative-key", *sizes, "--set", "max_positions=9"]
    done = CliRunner().invoke(group, ["verify", bundle, "--against", *other])
    assert str(done.exception) == (
        f"encoder-relative-key is not what {bundle} was made from (encoder-relative-key): its weights or files differ; "
        "verify it against that"
    )


def test_generate_says_what_an_encoder_is_for(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "b")
    done = CliRunner().invoke(group, ["generate", str(bundle), "--prompt", "x"])
    assert str(done.exception) == (
        "this is a feature-extraction model; generate needs a text-generation or text2text-generation one: "
        "use posexport run"
    )
