"""Certificates: written after a check that passed, and compared with downloaded files without the source."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from posexport.cli import group
from posexport.errors import PosexportError
from posexport.run.bundle.certificate import Certificate, certify
from posexport.run.bundle.manifest import MANIFEST
from tests.tiny_bundle import tiny_model

EMBEDDER = Path(__file__).parents[3] / "posexport" / "testing" / "smoke" / "embedder"


def verify(*words: str | Path) -> Result:
    return CliRunner().invoke(group, ["verify", *map(str, words)])


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EMBEDDER, tmp_path / "bundle"))


@pytest.fixture
def certificate(bundle: Path, tmp_path: Path) -> Path:
    done = verify(bundle, "--write-certificate", tmp_path / "certificate.json")
    assert done.exit_code == 0, done.output
    return tmp_path / "certificate.json"


def test_a_certificate_names_every_file_the_verdict_and_the_versions(bundle: Path, certificate: Path) -> None:
    document = json.loads(certificate.read_bytes())
    manifest = json.loads((bundle / MANIFEST).read_bytes())
    assert document["files"].keys() == {MANIFEST, *manifest["files"]}
    assert {"model.onnx", "tokenizer.json", "parity.safetensors"} < document["files"].keys()
    assert (document["verdict"], document["compared_with"]) == ("checked on the stored sample", "sample")
    assert document["source"] == manifest["source"]
    assert document["tools"].keys() > {"numpy", "onnx"}
    assert str(bundle.parent) not in certificate.read_text(encoding="utf-8")


def test_the_same_files_pass_elsewhere(bundle: Path, certificate: Path) -> None:
    moved = bundle.rename(bundle.with_name("downloaded"))
    done = verify(moved, "--certificate", certificate)
    assert done.exit_code == 0, done.output
    assert "12 files as certified by posexport" in done.stderr
    assert "passed" in done.stdout


def test_a_verdict_that_was_altered_in_the_manifest_is_found(bundle: Path, certificate: Path) -> None:
    manifest = bundle / MANIFEST
    manifest.write_text(manifest.read_text(encoding="utf-8").replace('"proven": false', '"proven": true'), "utf-8")
    assert verify(bundle).exit_code == 0
    done = verify(bundle, "--certificate", certificate)
    assert isinstance(done.exception, PosexportError)
    assert "posexport.json has sha256" in str(done.exception)
    assert "it is another file; download it again" in str(done.exception)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"certificate_version": 2}, "version 2 of the format, this posexport reads 1"),
        ({"files": {}}, "names no files"),
        ({"files": {"../x": {"size": 1, "sha256": "0" * 64}}}, "files outside the folder"),
        ({"verdict": 3}, "is not a certificate of posexport"),
        ({"files": {"model.onnx": {"size": 1, "sha256": "0" * 64}}}, r"does not certify 1_Pooling/config.json"),
    ],
    ids=["newer", "empty", "outside", "type", "fewer"],
)
def test_a_damaged_certificate_is_refused(
    damage: dict[str, object], says: str, bundle: Path, certificate: Path
) -> None:
    certificate.write_text(json.dumps(json.loads(certificate.read_bytes()) | damage), "utf-8")
    with pytest.raises(PosexportError, match=says):
        raise verify(bundle, "--certificate", certificate).exception or AssertionError


def test_a_lone_model_is_compared_by_its_bytes_under_any_name(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(tiny_model().SerializeToString())
    path = tmp_path / "certificate.json"
    path.write_bytes(certify(model, verdict="proven", compared_with="source", provider="cpu", tools={}).to_json())
    done = verify(model.rename(tmp_path / "downloaded.onnx"), "--certificate", path)
    assert (done.exit_code, done.stdout) == (0, f"{tmp_path / 'downloaded.onnx'} is certified\n")
    with (tmp_path / "downloaded.onnx").open("ab") as file:
        file.write(b"\0\0")
    assert verify(tmp_path / "downloaded.onnx", "--certificate", path).exit_code != 0


def test_fields_of_later_versions_are_ignored() -> None:
    fields = {"created": "", "verdict": "proven", "compared_with": "source", "provider": "cpu", "tools": {}}
    fields |= {"source": None, "proof": None, "files": {}, "later": 1}
    assert msgspec.convert(fields, Certificate).verdict == "proven"
