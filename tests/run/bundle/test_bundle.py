"""A bundle is whole or not there, is the one that was written, and replaces nothing but a bundle."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posexport.base.options.recipe import Recipe
from posexport.base.spec import EncodingSpec, InputSpec, Limits, OutputSpec
from posexport.errors import PosexportError
from posexport.run.bundle import directory
from posexport.run.bundle.manifest import (
    LARGEST,
    FileEntry,
    LoweringSpec,
    Manifest,
    ParitySummary,
    PassSpec,
    SourceInfo,
    decode,
    encode,
    is_portable,
)
from posexport.run.bundle.read import check_hashes, locate, read
from posexport.run.bundle.write import seal, staged
from tests.tiny_bundle import MANIFEST, rewrite, write_bundle

ROOT = Path(__file__).resolve().parents[3]
LISTED = {"model.onnx": FileEntry(size=3, sha256="1" * 64)}


def contents(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def only(directory: Path) -> list[str]:
    """Everything in a directory, hidden leftovers too."""
    return sorted(path.name for path in directory.iterdir())


def stage(target: Path, write: Callable[[Path], object], *, force: bool = False) -> None:
    with staged(target, force=force) as staging:
        write(staging)


# -- the manifest ----------------------------------------------------------------------------------

texts = st.text(max_size=12)
hashes = st.text("0123456789abcdef", min_size=64, max_size=64)
counts = st.integers(0, 2**53)
numbers = st.floats(allow_nan=False, allow_infinity=False)
plain_names = st.text("abcxyz._-09/", min_size=1, max_size=12).filter(is_portable)
axes = st.lists(st.one_of(st.sampled_from(["batch_size", "sequence_length"]), st.integers(1, 4096)), max_size=4)
inputs = st.lists(
    st.builds(
        InputSpec,
        name=texts,
        dtype=st.sampled_from(["int64", "float32"]),
        axes=axes,
        role=st.sampled_from(["tokens", "mask", "types", "values"]),
        size=st.none() | counts,
        padding=counts,
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda spec: spec.name,
)
outputs = st.lists(
    st.builds(OutputSpec, name=texts, axes=axes), min_size=1, max_size=3, unique_by=lambda spec: spec.name
)
parameters = st.dictionaries(
    texts, st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), numbers, texts), max_size=4
)
manifests = st.builds(
    Manifest,
    posexport=texts,
    source=st.builds(SourceInfo, name=texts, kind=st.sampled_from(["builtin", "python", "huggingface"]), sha256=hashes),
    task=texts,
    encoding=st.none() | st.builds(EncodingSpec, name=texts, parameters=parameters),
    limits=st.builds(
        Limits,
        min_length=st.integers(1, 64),
        trained_length=st.none() | counts,
        max_length=st.none() | counts,
        beyond=st.sampled_from(["error", "clip", "interpolate"]),
        boundaries=st.lists(counts, max_size=3),
    ),
    inputs=inputs,
    outputs=outputs,
    target=st.sampled_from(["portable", "cpu", "cuda"]),
    recipe=st.builds(
        Recipe,
        task=texts,
        settings=st.dictionaries(texts, texts, max_size=2),
        cache=st.sampled_from(["dynamic", "static"]),
        max_length=st.none() | counts,
        opset=st.integers(1, 99),
        inline=st.booleans(),
    ),
    opset=st.integers(1, 99),
    ir_version=st.integers(1, 99),
    functions=st.lists(texts, max_size=3),
    lowerings=st.dictionaries(
        texts,
        st.builds(LoweringSpec, lowering=texts, nodes=counts, rejected=st.dictionaries(texts, texts, max_size=2)),
        max_size=3,
    ),
    passes=st.dictionaries(texts, st.builds(PassSpec, nodes=counts, rejected=st.lists(texts, max_size=2)), max_size=3),
    files=st.dictionaries(plain_names, st.builds(FileEntry, size=counts, sha256=hashes), max_size=3).map(
        lambda files: files | LISTED
    ),
    tools=st.dictionaries(texts, texts, max_size=3),
    parity=st.none()
    | st.builds(
        ParitySummary,
        points=counts,
        passed=counts,
        skipped=counts,
        rejected=counts,
        worst_error=st.none() | numbers,
        worst_tolerance=st.none() | numbers,
        complete=st.booleans(),
    ),
    proven=st.booleans(),
    proven_on=st.lists(texts, max_size=2),
    checked_lengths=st.lists(counts, max_size=3),
    created=texts,
)


@settings(max_examples=60, deadline=None)
@given(manifests)
def test_a_manifest_survives_json(manifest):
    again = decode(encode(manifest))
    assert again == manifest
    assert encode(again) == encode(manifest)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_with_a_sentence(data):
    with pytest.raises(PosexportError, match=r"^it "):
        decode(data)


def damaged(**changes):
    return json.dumps({**json.loads(encode(msgspec.structs.replace(MANIFEST, files=LISTED))), **changes}).encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            damaged(format_version=2, news=[]),
            "format version 2, this posexport reads 1: pip install --upgrade posexport",
        ),
        (
            damaged(posexport="0.10.0", news=[]),
            "does not read it .*news.*: pip install --upgrade posexport, posexport 0.10.0",
        ),
        (damaged(format_version=0), "format version 0, this posexport reads 1: convert the model again"),
        (damaged(format_version="1"), "format_version"),
        (damaged(surprise=1), "surprise"),
        (damaged(source={"name": "x", "kind": "builtin", "sha256": "0" * 63}), r"\$.source.sha256"),
        (damaged(source={"name": "x", "kind": "builtin", "sha256": "0" * 64, "more": 1}), "more"),
        (damaged(files={}), "does not list model.onnx"),
        (damaged(files={"model.onnx": {"size": -1, "sha256": "0" * 64}}), "size|>= 0"),
        (damaged(inputs=[]), "its inputs must be named"),
        (damaged(outputs=[{"name": "a", "axes": []}] * 2), "its outputs must be named, each once"),
        (b"{}", "format_version"),
        (b"[1]", "not a manifest"),
        (b"", "not a manifest"),
        (damaged()[:-1], "not a manifest"),
        (b'{"format_version": 1, "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
        (b" " * (LARGEST + 1), f"at most {LARGEST}"),
        (b"\xff\xfe", "not a manifest"),
    ],
)
def test_a_damaged_manifest_is_refused(data, says):
    with pytest.raises(PosexportError, match=says):
        decode(data)


@pytest.mark.parametrize(
    "name",
    [
        *("../model.onnx", "a/../../b", "/etc/passwd", "", ".", "..", "a//b", "a/", "./a", "posexport.json"),
        *("..\\b", "C:evil", "a\nb", "a\0b"),
    ],
)
def test_file_names_that_leave_the_bundle_are_refused(name):
    assert not is_portable(name)
    with pytest.raises(PosexportError, match="must be relative and stay in the bundle"):
        decode(damaged(files={**json.loads(damaged())["files"], name: {"size": 1, "sha256": "0" * 64}}))


@pytest.mark.parametrize(
    "name", ["model.onnx", "model.onnx.data", "onnx/model_q4.onnx", "1_Pooling/config.json", "é.txt"]
)
def test_ordinary_file_names_are_taken(name):
    assert is_portable(name)


# -- reading ---------------------------------------------------------------------------------------


def test_a_written_bundle_reads_back(tmp_path):
    bundle = write_bundle(tmp_path / "b", external=True, texts=True)
    manifest = read(bundle)
    assert set(manifest.files) == {"model.onnx", "model.onnx.data", "tokenizer.json"}
    for name, entry in manifest.files.items():
        data = (bundle / name).read_bytes()
        assert (entry.size, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    check_hashes(bundle, manifest)
    assert msgspec.structs.replace(manifest, files={}) == MANIFEST
    assert only(tmp_path) == ["b"]


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def elsewhere(path):
    target = path.parent.parent / "elsewhere"
    path.rename(target)
    path.symlink_to(target)


def replaced(make):
    def damage(path):
        path.unlink()
        make(path)

    return damage


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data"])
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (flip, r"has sha256 [0-9a-f]{64}, the manifest says [0-9a-f]{64}: it was altered"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), r"has \d+ bytes, the manifest says \d+: it was cut"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\0"), r"has \d+ bytes, the manifest says \d+"),
        (Path.unlink, "is missing"),
        (replaced(Path.mkdir), "is not a regular file"),
        (replaced(os.mkfifo), "is not a regular file"),
        (replaced(lambda path: path.symlink_to("nowhere")), "is missing"),
        (replaced(lambda path: path.symlink_to(path)), "cannot read"),
        (elsewhere, "is a link that leaves the bundle, to .*elsewhere"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, damage, says):
    bundle = write_bundle(tmp_path / "b", external=True)
    manifest = read(bundle)
    damage(bundle / name)
    with pytest.raises(PosexportError, match=says) as caught:
        check_hashes(bundle, manifest)
    assert str(bundle / name) in str(caught.value)


def test_a_file_that_is_not_listed_is_no_part_of_the_bundle(tmp_path):
    bundle = write_bundle(tmp_path / "b")
    (bundle / "README.md").write_text("mine")
    manifest = read(bundle)
    check_hashes(bundle, manifest)
    assert "README.md" not in manifest.files


def test_what_is_not_a_bundle_is_refused(tmp_path):
    with pytest.raises(PosexportError, match="does not exist"):
        read(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(PosexportError, match="is a file"):
        read(tmp_path / "file")
    with pytest.raises(PosexportError, match=r"it has no posexport.json"):
        read(tmp_path)


def test_a_damaged_manifest_names_its_file(tmp_path):
    bundle = write_bundle(tmp_path / "b")
    rewrite(bundle, format_version=7)
    with pytest.raises(PosexportError, match=r"cannot use .*posexport.json: it has format version 7"):
        read(bundle)


def test_a_bundle_of_another_format_is_not_replaced(tmp_path):
    bundle = write_bundle(tmp_path / "b")
    rewrite(bundle, format_version=7)
    with pytest.raises(PosexportError, match=r"it has format version 7, .* remove it or choose another output"):
        write_bundle(bundle, force=True)


def test_a_hugging_face_cache_entry_works_and_its_neighbour_is_out_of_reach(tmp_path):
    bundle = write_bundle(tmp_path / "b", external=True)
    entry = tmp_path / "models--org--name"
    snapshot = entry / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (entry / "blobs").mkdir()
    for path in bundle.iterdir():
        path.rename(entry / "blobs" / f"blob-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/blob-{path.name}")
    manifest = read(snapshot)
    check_hashes(snapshot, manifest)
    other = tmp_path / "models--other--name" / "blobs"
    other.mkdir(parents=True)
    (entry / "blobs" / "blob-model.onnx").rename(other / "blob")
    (snapshot / "model.onnx").unlink()
    (snapshot / "model.onnx").symlink_to("../../../models--other--name/blobs/blob")
    with pytest.raises(PosexportError, match="leaves the bundle"):
        check_hashes(snapshot, manifest)


def test_a_link_within_the_bundle_is_fine(tmp_path):
    bundle = write_bundle(tmp_path / "b")
    (bundle / "model.onnx").rename(bundle / "real")
    (bundle / "model.onnx").symlink_to("real")
    assert locate(bundle, "model.onnx") == (bundle / "real").resolve()


# -- writing: what may become a bundle -------------------------------------------------------------


def test_an_existing_bundle_needs_force(tmp_path):
    bundle = write_bundle(tmp_path / "b")
    before = contents(bundle)
    with pytest.raises(PosexportError, match="--force"):
        write_bundle(bundle, texts=True)
    assert contents(bundle) == before
    write_bundle(bundle, texts=True, force=True)
    assert set(contents(bundle)) == {*before, "tokenizer.json"}
    assert only(tmp_path) == ["b"]


def user_files(path):
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")


def bundle_with_notes(path):
    write_bundle(path)
    (path / "notes").mkdir()
    (path / "notes" / "thesis.tex").write_text("years of work")


def damaged_bundle(path):
    write_bundle(path)
    (path / "posexport.json").write_text("{}")


def linked(path):
    path.symlink_to(write_bundle(path.with_name("real")))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (user_files, "not a bundle"),
        (bundle_with_notes, r"holds notes/thesis.tex, no part of the bundle"),
        (damaged_bundle, "remove it or choose another"),
        (lambda path: path.write_text("years of work"), "is a file"),
        (linked, "is a symbolic link"),
        (lambda path: path.symlink_to("nowhere"), "is a symbolic link"),
    ],
)
def test_nothing_but_a_bundle_is_replaced_even_with_force(tmp_path, make, says):
    make(tmp_path / "b")
    before = contents(tmp_path)
    with pytest.raises(PosexportError, match=says):
        write_bundle(tmp_path / "b", force=True)
    assert contents(tmp_path) == before


def test_an_empty_directory_is_replaced_with_force(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(PosexportError, match="--force"):
        write_bundle(tmp_path / "b")
    read(write_bundle(tmp_path / "b", force=True))


def test_missing_parents_are_made_at_the_end(tmp_path):
    def write(staging):
        assert staging.parent == tmp_path
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stage(tmp_path / "x" / "y" / "b", write)
    assert only(tmp_path) == []
    read(write_bundle(tmp_path / "x" / "y" / "b"))
    assert only(tmp_path) == ["x"]


@pytest.mark.parametrize("name", ["b", "./b", "x/../b", "../here/b"])
def test_relative_targets_mean_the_current_directory(tmp_path, monkeypatch, name):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write_bundle(Path(name))
    read(tmp_path / "here" / "b")
    assert only(tmp_path / "here") == ["b"]


def test_the_current_directory_itself_is_no_target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(PosexportError, match="is not a bundle"):
        write_bundle(Path("."), force=True)
    assert only(tmp_path) == ["thesis.tex"]


def test_a_parent_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(PosexportError, match="file is not a directory"):
        write_bundle(tmp_path / "file" / "x" / "b")


def test_a_name_that_the_disk_refuses_is_a_sentence(tmp_path):
    with pytest.raises(PosexportError, match=r"cannot create .*File name too long"):
        write_bundle(tmp_path / ("b" * 250))
    assert only(tmp_path) == []


def test_links_do_not_get_into_a_bundle(tmp_path):
    def write(staging):
        (staging / "model.onnx").write_bytes(b"abc")
        (staging / "config.json").symlink_to("model.onnx")
        seal(staging, MANIFEST)

    with pytest.raises(ValueError, match=r"config\.json is a link"):
        stage(tmp_path / "b", write)
    assert only(tmp_path) == []


def test_a_manifest_that_would_not_read_back_is_not_written(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"abc")
    assert MANIFEST.parity is not None
    bad = msgspec.structs.replace(MANIFEST, parity=msgspec.structs.replace(MANIFEST.parity, worst_error=float("nan")))
    with pytest.raises(ValueError, match="NaN"):
        seal(tmp_path, bad)
    assert only(tmp_path) == ["model.onnx"]


@pytest.mark.parametrize(
    ("umask", "file", "folder"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700), (0o002, 0o664, 0o775)]
)
def test_permissions_are_those_of_new_files(tmp_path, umask, file, folder):
    before = os.umask(umask)
    try:
        with staged(tmp_path / "b", force=False) as staging:
            (staging / "sub").mkdir(mode=0o700)
            for name in ("model.onnx", "sub/data"):
                (staging / name).write_bytes(b"abc")
                (staging / name).chmod(0o600)  # as onnx writes external data
            seal(staging, MANIFEST)
    finally:
        os.umask(before)
    modes = {p.relative_to(tmp_path).as_posix(): p.stat().st_mode & 0o777 for p in tmp_path.rglob("*")}
    wanted = {"b": folder, "b/sub": folder, "b/model.onnx": file, "b/sub/data": file, "b/posexport.json": file}
    assert modes == wanted


# -- writing: interruptions ------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, PosexportError])
@pytest.mark.parametrize("old", [True, False])
def test_an_interrupted_write_changes_nothing(tmp_path, error, old):
    if old:
        write_bundle(tmp_path / "b")
    before = contents(tmp_path)

    def write(staging):
        (staging / "model.onnx").write_bytes(b"half")
        raise error("interrupted")

    with pytest.raises(error):
        stage(tmp_path / "b", write, force=True)
    assert contents(tmp_path) == before
    assert only(tmp_path) == (["b"] if old else [])


@pytest.mark.parametrize("exchange", [True, False])
def test_an_interruption_of_the_move_keeps_the_old_bundle(tmp_path, monkeypatch, exchange):
    """Wherever Ctrl-C comes between the renames, a whole bundle is under the name."""
    bundle = write_bundle(tmp_path / "b")
    before = contents(bundle)
    if not exchange:
        monkeypatch.setattr(directory, "_renameat2", lambda *_: False)
    rename, calls = Path.rename, []

    def interrupted(self, target):
        calls.append(target)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    for stop in (1, 2):
        calls.clear()
        with contextlib.suppress(KeyboardInterrupt):
            write_bundle(bundle, force=True)
        assert contents(bundle) == before
        assert only(tmp_path) == ["b"]
        assert len(calls) == (0 if exchange else stop + 1 if stop == 2 else 1)


def test_without_an_exchange_a_bundle_is_replaced_too(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "_renameat2", lambda *_: False)
    bundle = write_bundle(tmp_path / "b")
    write_bundle(bundle, texts=True, force=True)
    check_hashes(bundle, read(bundle))
    assert "tokenizer.json" in contents(bundle)
    assert only(tmp_path) == ["b"]


def test_a_target_that_appears_meanwhile_is_not_overwritten(tmp_path):
    def write(staging):
        (staging / "model.onnx").write_bytes(b"abc")
        seal(staging, MANIFEST)
        write_bundle(tmp_path / "b", texts=True)

    with pytest.raises(PosexportError, match="--force"):
        stage(tmp_path / "b", write)
    assert "tokenizer.json" in contents(tmp_path / "b")
    assert only(tmp_path) == ["b"]


@pytest.mark.parametrize("flag", [True, False])
def test_a_new_name_is_never_taken_from_somebody(tmp_path, monkeypatch, flag):
    if not flag:
        monkeypatch.setattr(directory, "_renameat2", lambda *_: False)
    for name in ("new", "target"):
        (tmp_path / name).mkdir()
    with pytest.raises(FileExistsError):
        directory.place_directory(tmp_path / "new", tmp_path / "target")
    (tmp_path / "target").rmdir()
    directory.place_directory(tmp_path / "new", tmp_path / "target")
    assert only(tmp_path) == ["target"]


WRITER = """
import sys, time
from pathlib import Path
from posexport.run.bundle.write import staged
with staged(Path(sys.argv[1]), force=True) as staging:
    (staging / "model.onnx").write_bytes(b"half")
    sys.stdout.write("writing\\n")
    sys.stdout.flush()
    time.sleep(60)
"""


def python(code: str, *arguments: object, **options) -> subprocess.Popen:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, **options)


def interrupt(target: Path, number: int) -> int:
    process = python(WRITER, target)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert len(only(target.parent)) == 1 + target.exists()
        process.send_signal(number)
        process.communicate(timeout=30)
    return process.returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_nothing(tmp_path, number):
    bundle = write_bundle(tmp_path / "b")
    before = contents(bundle)
    # what runs the tests in the background may have it ignored, and children inherit that
    handler = signal.signal(number, signal.SIG_DFL)
    try:
        code = interrupt(bundle, number)
    finally:
        signal.signal(number, handler)
    assert code in (128 + number, -number)
    assert contents(bundle) == before
    assert only(tmp_path) == ["b"]


@pytest.mark.parametrize("old", [True, False])
def test_a_kill_leaves_no_half_bundle_and_the_next_run_cleans_up(tmp_path, old):
    target = tmp_path / "b"
    if old:
        write_bundle(target)
    assert interrupt(target, signal.SIGKILL) == -signal.SIGKILL
    assert len(only(tmp_path)) == 1 + old  # the leftover is hidden beside the target
    if old:
        check_hashes(target, read(target))
    else:
        assert not target.exists()
    write_bundle(target, force=True)
    assert only(tmp_path) == ["b"]


def dead_pid() -> int:
    with python("pass") as process:
        process.communicate(timeout=30)
    return process.pid


def test_a_bundle_that_a_kill_left_aside_goes_back(tmp_path):
    bundle = write_bundle(tmp_path / "b")
    bundle.rename(tmp_path / f".b.posexport-{dead_pid()}-0123abcd.old")
    with pytest.raises(RuntimeError), staged(tmp_path / "b", force=True):
        raise RuntimeError
    check_hashes(bundle, read(bundle))
    assert only(tmp_path) == ["b"]


def test_what_somebody_holds_or_what_is_not_ours_is_not_cleaned(tmp_path):
    pid = dead_pid()
    names = [f".b.posexport-{os.getpid()}-0123abcd", f".b.posexport-{pid}-0123abcX", f".c.posexport-{pid}-0123abcd"]
    held = f".b.posexport-{pid}-00000000"
    for name in [*names, held]:
        (tmp_path / name).mkdir()
    with directory.held(tmp_path / held) as free:
        assert free
        directory.clean_leftovers(tmp_path, "b")
        assert set(only(tmp_path)) == {*names, held}
    directory.clean_leftovers(tmp_path, "b")
    assert set(only(tmp_path)) == set(names)


LIMITED = """
import resource, sys
from pathlib import Path
from posexport.run.bundle.write import staged
from posexport.errors import PosexportError
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with staged(Path(sys.argv[1]), force=True) as staging:
        (staging / "model.onnx").write_bytes(bytes(5000))
except PosexportError as err:
    sys.stdout.write(f"refused: {err}")
"""


@pytest.mark.parametrize("old", [True, False])
def test_a_disk_that_takes_no_more_is_a_sentence_and_loses_nothing(tmp_path, old):
    target = tmp_path / "b"
    if old:
        write_bundle(target)
    before = contents(tmp_path)
    with python(LIMITED, target) as process:
        out, err = process.communicate(timeout=30)
    assert err == ""
    assert out.startswith(f"refused: cannot write {target}: File too large")
    assert ("is unchanged" in out) == old
    assert contents(tmp_path) == before
    assert only(tmp_path) == (["b"] if old else [])


def test_an_os_error_that_is_not_the_disks_is_not_disguised(tmp_path):
    with pytest.raises(FileNotFoundError):
        stage(tmp_path / "b", lambda _: (tmp_path / "no" / "such").read_bytes())


NOBODY = """
import os, sys
from pathlib import Path
from posexport.run.bundle.write import staged
from posexport.errors import PosexportError
if os.geteuid() == 0:  # who may write everywhere
    os.setuid(65534)
for target in map(Path, sys.argv[1:]):
    try:
        with staged(target, force=True) as staging:
            (staging / "model.onnx").write_bytes(b"abc")
    except PosexportError as err:
        sys.stdout.write(f"{err}\\n")
"""


def test_a_parent_that_cannot_be_written_or_looked_into_is_a_sentence():
    with tempfile.TemporaryDirectory() as name:  # tmp_path is closed to others
        open_, shut = Path(name), Path(name) / "shut"
        shut.mkdir()
        targets = [open_ / "b", open_ / "x" / "b", shut / "b", shut / "x" / "b"]
        shut.chmod(0)
        open_.chmod(0o555)
        with python(NOBODY, *targets) as process:
            out, err = process.communicate(timeout=30)
        open_.chmod(0o700)
        shut.chmod(0o700)
        assert err == ""
        assert [line.split(":")[0] for line in out.splitlines()] == [f"cannot create {target}" for target in targets]
        assert out.count("Permission denied; choose another output") == len(targets)
        assert only(open_) == ["shut"]


def test_a_read_only_file_system_is_a_sentence():
    target = Path("/proc/posexport-bundle")
    if not target.parent.is_dir():
        pytest.skip("no /proc here, which takes no directories even from root")
    with pytest.raises(PosexportError, match=r"cannot create /proc/posexport-bundle: .*; choose another output"):
        write_bundle(target)


CONCURRENT = """
import sys
from pathlib import Path
from tests.tiny_bundle import write_bundle
for _ in range(15):
    write_bundle(Path(sys.argv[1]), texts=sys.argv[2] == "texts", force=True)
"""


def test_writers_at_once_leave_one_whole_bundle(tmp_path):
    """While two writers replace it over and over, a reader never finds it missing, and at the end it is whole."""
    target = write_bundle(tmp_path / "b")
    writers = [python(CONCURRENT, target, kind) for kind in ("texts", "none")]
    looks = 0
    while any(writer.poll() is None for writer in writers):
        assert (target / "model.onnx").is_file()
        looks += 1
        time.sleep(0.0005)
    for writer in writers:
        with writer:
            assert writer.communicate()[1] == ""
        assert writer.returncode == 0
    assert looks > 10
    check_hashes(target, read(target))
    assert only(tmp_path) == ["b"]
