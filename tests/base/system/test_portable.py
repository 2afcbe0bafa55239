"""What runs without PyTorch on other systems than Linux, as far as Linux can pretend to be one."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path, PureWindowsPath

import msgspec
import psutil
import pytest

import posexport
from posexport.base.system import machine
from posexport.errors import PosexportError
from posexport.inspect.audit.calls import process
from posexport.run.bundle.manifest import FileEntry, decode, encode, is_portable
from posexport.run.tokenizer import library
from tests.tiny_bundle import MANIFEST

ROOT = Path(__file__).parents[3]
EMBEDDER = ROOT / "posexport" / "testing" / "smoke" / "embedder"
SOURCES = sorted([*(ROOT / "posexport").rglob("*.py"), *(ROOT / "models").glob("*.py")])
TEXT = "naïve 東京 → 😀"


def without_encoding(path: Path) -> list[int]:
    """Lines that open a text file in the encoding of the machine: UTF-8 here, cp1252 on many a Windows."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or any(each.arg in ("encoding", None) for each in node.keywords):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("read_text", "write_text"):
            arguments = len(node.args) - (node.func.attr == "write_text")
            lines += [node.lineno] if arguments < 1 else []
        elif any(each.arg == "text" and getattr(each.value, "value", False) is True for each in node.keywords):
            lines.append(node.lineno)
        elif getattr(node.func, "id", getattr(node.func, "attr", "")) in ("open", "fdopen", "TemporaryFile"):
            modes = [each.value for each in [*node.args, *(key.value for key in node.keywords)] if is_mode(each)]
            lines += [node.lineno] if modes and not any("b" in mode for mode in modes) else []
    return lines


def with_the_systems_newlines(path: Path) -> list[int]:
    """Lines that write text whose bytes depend on the system, where files have hashes and go to other machines."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "write_text"
        and not any(each.arg == "newline" for each in node.keywords)
    ]


def is_mode(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and set(node.value) <= set("rwxabt+")


def test_every_text_file_has_an_encoding(tmp_path: Path) -> None:
    wrong = {path.relative_to(ROOT).as_posix(): lines for path in SOURCES if (lines := without_encoding(path))}
    assert not wrong
    (tmp_path / "x.py").write_text(
        "p.read_text()\np.open('w')\nopen(p, 'rb')\np.write_text(t, encoding='utf-8')\nrun(text=True)\n"
    )
    assert without_encoding(tmp_path / "x.py") == [1, 2, 5]


def test_text_files_have_the_same_bytes_on_every_system(tmp_path: Path) -> None:
    wrong = {path.relative_to(ROOT).as_posix(): lines for path in SOURCES if (lines := with_the_systems_newlines(path))}
    assert not wrong
    (tmp_path / "x.py").write_text("p.write_text(t, encoding='utf-8', newline='\\n')\np.write_text(t)\n")
    assert with_the_systems_newlines(tmp_path / "x.py") == [2]


def posexport_command(*words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(
        [sys.executable, "-m", "posexport", *words], env=environment, capture_output=True, check=False
    )


def test_output_to_a_pipe_of_another_encoding_escapes_what_it_lacks() -> None:
    words = ("tokenizer", "encode", str(EMBEDDER / "tokenizer.json"), "--text", TEXT)
    done = posexport_command(*words, PYTHONIOENCODING="cp1252")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode("cp1252")


def test_files_are_read_as_utf_8_whatever_the_locale_says() -> None:
    locale = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    for words in (("run", str(EMBEDDER), "--text", "a cat"), ("list", "families"), ("verify", str(EMBEDDER))):
        done = posexport_command(*words, **locale)
        assert done.returncode == 0, done.stderr


#: a process that takes itself for one on Windows: without fcntl, resource and processes' affinity
_ON_WINDOWS = """
import os, shutil, sys
from pathlib import Path
import numpy, onnx, onnxruntime, psutil, subprocess, tempfile, tokenizers  # decide by the system when imported
sys.modules["fcntl"] = sys.modules["resource"] = None
del os.sched_getaffinity, os.O_DIRECTORY
sys.platform = "win32"
import msgspec, posexport
from posexport.run.bundle.read import read
from posexport.run.bundle.write import seal, staged
bundle, copy = Path(sys.argv[1]), Path(sys.argv[2])
session = posexport.load(bundle)
assert session.self_check()
assert posexport.verify(bundle).passed
manifest = read(bundle)
for force in (False, True):
    with staged(copy, force=force) as folder:
        for name in manifest.files:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(bundle / name, folder / name)
        seal(folder, manifest)
assert posexport.load(copy).encode(["a cat"]).shape == (1, 8)
"""


def test_a_bundle_is_written_and_read_without_what_windows_lacks(tmp_path: Path) -> None:
    line = [sys.executable, "-c", _ON_WINDOWS, str(EMBEDDER), str(tmp_path / "copy")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_machine_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CPU_INFO", "GROUP"):
        monkeypatch.setattr(machine, name, tmp_path / name)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    assert 0 < machine.available() < machine.total()
    assert posexport.load(EMBEDDER).encode(["a cat"]).shape == (1, 8)


def test_large_files_of_a_tokenizer_are_copied_where_no_link_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError("A required privilege is not held by the client")

    (tmp_path / "tokenizer.json").write_bytes(bytes(1_000_001))
    for is_link in (True, False):
        if not is_link:
            monkeypatch.setattr(Path, "symlink_to", refused)
        with library.folder({"a/tokenizer.json": tmp_path / "tokenizer.json"}) as folder:
            copy = folder / "a" / "tokenizer.json"
            assert (copy.stat().st_size, copy.is_symlink()) == (1_000_001, is_link)


def test_the_memory_of_a_child_process_is_known_on_every_system() -> None:
    assert process._resident(os.getpid()) > 1e6
    assert process._resident(2**22 + 1) == 0


@pytest.mark.parametrize("name", ["con", "AUX.json", "nul.tar.gz", "lpt1", "a/com9.bin", "model.onnx.", "x /y", "a..."])
def test_names_that_windows_does_not_take_are_in_no_bundle(name: str) -> None:
    assert not is_portable(name)


@pytest.mark.parametrize("name", ["model.onnx", "1_Pooling/config.json", "console.json", ".gitattributes", "a.b/c"])
def test_other_names_are_and_mean_the_same_there(name: str) -> None:
    assert is_portable(name)
    assert PureWindowsPath(name).as_posix() == name


def test_names_that_differ_in_case_only_are_refused() -> None:
    entry = FileEntry(size=1, sha256="0" * 64)
    files = {"model.onnx": entry, "Vocab.txt": entry, "vocab.txt": entry}
    manifest = encode(msgspec.structs.replace(MANIFEST, files=files))
    with pytest.raises(PosexportError, match=r"'Vocab\.txt' and 'vocab.txt', which differ in case only"):
        decode(manifest)
    assert json.loads(manifest)["files"].keys() == files.keys()
