"""What a hostile or unlucky user meets: one sentence on stderr, exit 2 (130 for Ctrl-C), stdout clean, nothing lost."""

import errno
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import onnx_ir as ir
import pytest

import posexport.conversion.convert
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.run.bundle import directory
from posexport.run.bundle.write import staged
from posexport.run.load import load
from tests.tiny_bundle import write_bundle

GOLDEN = Path(__file__).parents[1] / "golden"
TINY = [f"--set={size}" for size in ("layers=1", "hidden=20", "feedforward=37", "vocab=61")]

Command = Callable[..., tuple[int, str, str]]


def sentence(result: tuple[int, str, str]) -> str:
    """The one line on stderr of a command that could not do it."""
    code, out, err = result
    assert (code, out) == (2, ""), err
    assert err.count("\n") == 1, err
    assert err.startswith("posexport: ")
    return err


# -- the user's own Python file ---------------------------------------------------------------------

SOURCE = """
import sys
import torch
from torch import nn

IDS = torch.arange(10).view(2, 5)


class Model(nn.Module):
    def __init__(self, answer=lambda x: x * 2.0):
        super().__init__()
        self.answer = answer

    def forward(self, x):
        print("computing")
        return self.answer(x)


X = torch.randn(2, 5, 3)
loud = lambda: print("factory") or (Model(), {"x": X})
exits = lambda: sys.exit(0)
exits_later = lambda: (Model(lambda x: sys.exit(0)), {"x": X})
empty = lambda: (Model(), {"x": IDS[:0]})
negative = lambda: (Model(), {"x": -IDS})
a_list = lambda: (Model(), {"x": [1, 2]})
axes_text = lambda: (Model(), {"x": IDS}, {"x": "ab"})
axes_none = lambda: (Model(), {"x": IDS}, {"x": [None, "sequence_length"]})
axes_zero = lambda: (Model(), {"x": IDS}, {"x": [0, "sequence_length"]})
axes_words = lambda: (Model(), {"x": IDS}, {"x": ["batch_size", "two words"]})
axes_list = lambda: (Model(), {"x": IDS}, ["x"])
names = lambda: (Model(lambda x: {"small" if x.shape[1] < 7 else "large": x}), {"x": X})
ranks = lambda: (Model(lambda x: x if x.shape[1] < 7 else x.sum(0)), {"x": X})
branches = lambda: (Model(lambda x: x if x.sum() > 0 else -x), {"x": X[0]}, {"x": ["sequence_length", 3]})
"""


@pytest.fixture(scope="module")
def python_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user's own") / "my models.py"
    path.write_text(SOURCE)
    return path


def test_what_a_file_prints_does_not_reach_the_result(run: Command, python_file: Path, tmp_path: Path) -> None:
    code, out, err = run("convert", f"{python_file}:loud", "-o", tmp_path / "b", "--length", "3", "--json")
    assert code == 0
    assert json.loads(out)["good"]
    assert "factory\ncomputing\n" in err
    code, out, err = run("verify", tmp_path / "b", "--against", f"{python_file}:loud", "--length", "3", "--json")
    assert json.loads(out)["scope"] == "grid"
    assert "factory\ncomputing\n" in err


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("exits", "failed: SystemExit: 0"),
        ("exits_later", "the module failed at sizes"),
        ("empty", "the example of x must hold values, got shape [0, 5]"),
        ("negative", "the example must hold ids from 0 on"),
        ("a_list", "inputs must map names to tensors, got 'x': list"),
        ("axes_text", "has the axes 'ab'; give a list of names"),
        ("axes_none", "has the axes [None, 'sequence_length']"),
        ("axes_zero", "has the axes [0, 'sequence_length']"),
        ("axes_words", "has the axes ['batch_size', 'two words']"),
        ("axes_list", "axes must map names of inputs to lists, got list"),
        ("names", "it must return the same ones for every input"),
        ("ranks", "return one of a fixed size, or of an input's"),
        ("branches", "cannot be traced: "),
    ],
)
def test_a_file_that_does_not_fit(run: Command, python_file: Path, tmp_path: Path, factory: str, words: str) -> None:
    code, out, err = run("convert", f"{python_file}:{factory}", "-o", tmp_path / "b")
    said = err.replace("computing\n", "")  # its own words may come first
    assert words in sentence((code, out, said))
    assert list(tmp_path.iterdir()) == []


def test_a_table_shorter_than_the_traced_length(run: Command, tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text(
        "import torch\n"
        "from posexport.encodings.absolute import Absolute\n"
        "from posexport.encodings.positions import Positions\n"
        "class M(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.positions = Absolute(max_positions=9, hidden=3)\n"
        "    def forward(self, x):\n"
        "        return self.positions.embed(x, Positions.counted(x.shape[1], x.device))\n"
        "def make():\n"
        "    return M(), {'x': torch.randn(2, 5, 3)}\n"
    )
    code, out, _ = run("convert", f"{tmp_path}/short.py:make", "-o", tmp_path / "b", "--length", "9", "--length", "10")
    assert code == 0
    assert "rejected" in out


# -- settings and options ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("types=-1", "types must be at least 0 (no token types), got -1"),
        ("embedding=-4", "embedding must be a whole number from 1 on (or none), got -4"),
        ("embedding=0", "embedding must be a whole number from 1 on (or none), got 0"),
        ("layer_groups=3", "layer_groups must be from 1 to layers=2, got 3"),
        ("layer_groups=-1", "layer_groups must be from 1 to layers=2, got -1"),
        ("padding_id=1000", "padding_id must be from 0 to vocab - 1 = 999, got 1000"),
        ("eps=nan", "eps must be a finite number from 0 to below 1, got nan"),
        ("eps=-1", "eps must be a finite number from 0 to below 1, got -1.0"),
        ("labels=0", "labels must be at least 1, got 0"),
        ("seed=99999999999999999999999", "seed must be at most 16777216"),
        ("hidden=1000000000", "hidden must be at most 16777216"),
        ("max_positions=1000000000000", "max_positions must be at most 16777216"),
        ("head_size=8", "--set head_size=8: a head has hidden / heads = 12; set those instead"),
    ],
)
def test_a_setting_out_of_range(run: Command, tmp_path: Path, setting: str, words: str) -> None:
    assert words in sentence(run("convert", "encoder-relative-key", "-o", tmp_path / "b", "--set", setting))


@pytest.mark.parametrize("more", [(), ("--no-verify",)])
def test_an_unknown_provider_is_refused_even_where_none_is_used(run: Command, tmp_path: Path, more: list[str]) -> None:
    said = sentence(run("convert", "encoder-nope", "-o", tmp_path / "b", "--provider", "tpu", *more))
    assert "unknown provider 'tpu'; known: cpu, cuda" in said


def test_a_provider_that_does_not_load_is_found_out_first(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(provider: str) -> NoReturn:
        raise PosexportError(f"{provider} does not load")

    monkeypatch.setattr(posexport.conversion.convert, "check_loads", refuse)
    said = sentence(run("convert", "encoder-nope", "-o", tmp_path / "b", "--provider", "cuda"))
    assert "cuda does not load" in said


def test_more_threads_than_any_machine_has(run: Command, tmp_path: Path) -> None:
    code, out, err = run("run", tmp_path, "--text", "x", "--threads", "100000")
    assert (code, out) == (2, "")
    assert "100000 is not in the range" in err


@pytest.mark.parametrize("option", [("--set", "layers=2"), ("--task", "features"), ("--allow-pickle",)])
def test_options_about_a_source_need_one(run: Command, tmp_path: Path, option: tuple[str, ...]) -> None:
    said = sentence(run("verify", write_bundle(tmp_path / "b"), *option))
    assert f"{option[0]} is about the source to compare with; name it with --against SOURCE" in said


# -- paths ------------------------------------------------------------------------------------------

LONG = "x" * 3000


@pytest.mark.parametrize(
    "args",
    [
        ("convert", LONG, "-o", "b"),
        ("convert", f"./{LONG}", "-o", "b"),
        ("convert", f"{LONG}.py:make", "-o", "b"),
        ("convert", "encoder-nope", "-o", LONG),
        ("verify", LONG),
        ("run", LONG, "--text", "x"),
    ],
)
def test_a_name_that_is_too_long(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "File name too long" in sentence(run(*args))


def test_a_name_that_is_not_unicode(run: Command, tmp_path: Path) -> None:
    said = sentence(run("convert", "encoder-nope", "-o", f"{tmp_path}/\udcff", *TINY))
    assert "is not Unicode; choose another output" in said
    said = sentence(run("convert", "encoder-absolute", "-o", tmp_path / "c", "--set=layers=\udcff"))
    assert r"the argument '--set=layers=\udcff' is not UTF-8" in said
    with pytest.raises(PosexportError, match=r"text 0 .* is not Unicode"):
        load(write_bundle(tmp_path / "b", texts=True)).tokenize(["\udcff"])


def test_a_whole_disk_is_not_searched_before_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("mine")

    def rglob(path: Path, pattern: str) -> Iterator[Path]:
        del pattern
        yield path / "letter"
        raise AssertionError("one file was enough to know")

    monkeypatch.setattr(Path, "rglob", rglob)
    with pytest.raises(PosexportError, match="is not a bundle"), staged(tmp_path / "home", force=True):
        pass


def test_the_advice_fits_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(parent: Path, name: str) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(parent / name))

    monkeypatch.setattr(directory, "create_temporary", refuse)
    said = r"Permission denied; choose another output$"
    with pytest.raises(PosexportError, match=said), staged(tmp_path / "b", force=False):
        pass


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied", "secret"), "cannot use secret: Permission denied; give a path"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory; use a smaller model"),
        (MemoryError(), "out of memory; use a smaller model"),
        (PosexportError("a library said:\n  two\nlines"), "posexport: a library said: two lines\n"),
    ],
)
def test_what_the_machine_refuses(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(posexport.conversion.convert, "convert", fail)
    assert words in sentence(run("convert", "encoder-nope", "-o", tmp_path / "b"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_result_that_cannot_be_written() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "posexport", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "posexport: cannot write the result: No space left on device; free or choose another disk\n"


# -- interruptions ----------------------------------------------------------------------------------


def test_ctrl_c_is_no_finding(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(posexport.conversion.convert, "convert", interrupted)
    code, out, err = run("convert", "encoder-nope", "-o", tmp_path / "b")
    assert (code, out) == (130, "")
    assert err.strip() == "posexport: interrupted; what was there before is unchanged"


def swallow(target: Path, number: int, instead: type[Exception] | None) -> None:
    """Write a bundle, with a library in it that catches whatever a signal raises."""
    with staged(target, force=False):
        try:
            os.kill(os.getpid(), number)
        except BaseException:  # noqa: BLE001 (as the library does)
            if instead is not None:
                raise instead from None


@pytest.mark.parametrize(
    ("number", "default", "ended"),
    [
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
        (signal.SIGTERM, signal.SIG_DFL, SystemExit),
    ],
)
@pytest.mark.parametrize("instead", [None, ValueError])
def test_a_library_cannot_swallow_an_interruption(
    tmp_path: Path,
    number: signal.Signals,
    default: signal.Handlers,
    ended: type[BaseException],
    instead: type[Exception] | None,
) -> None:
    before = signal.signal(number, default)
    try:
        with pytest.raises(ended):
            swallow(tmp_path / "b", number, instead)
        assert signal.getsignal(number) is default
    finally:
        signal.signal(number, before)
    assert list(tmp_path.iterdir()) == []


# -- arrays -----------------------------------------------------------------------------------------


def inputs(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def test_one_array_without_a_name(run: Command, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.int64))
    (tmp_path / "x.npy").rename(tmp_path / "x.npz")
    said = sentence(run("run", write_bundle(tmp_path / "b"), "--inputs", tmp_path / "x.npz"))
    assert "x.npz is not an .npz file but one array without a name" in said


def test_no_advice_to_unpickle(run: Command, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(pickle.dumps({"input_ids": [[1]]}))
    said = sentence(run("run", write_bundle(tmp_path / "b"), "--inputs", tmp_path / "x.npz"))
    assert said.endswith("x.npz is not an .npz file of plain arrays: it holds pickled objects\n")
    checkpoint = tmp_path / "bert"
    shutil.copytree(GOLDEN / "bert-absolute", checkpoint)
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "pytorch_model.bin").write_bytes(pickle.dumps(Path))
    said = sentence(run("convert", checkpoint, "-o", tmp_path / "out", "--allow-pickle"))
    assert "pytorch_model.bin cannot be read with weights only" in said
    assert "False" not in said


def test_more_than_fits_in_memory(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise MemoryError("Unable to allocate 22 TiB")

    path = inputs(tmp_path / "x.npz", input_ids=np.ones((1, 3), np.int64))
    monkeypatch.setattr(np, "load", fail)
    said = sentence(run("run", write_bundle(tmp_path / "b"), "--inputs", path))
    assert "says that it holds more than fits in memory: Unable to allocate 22 TiB" in said


def test_a_directory_is_not_replaced_by_arrays(run: Command, tmp_path: Path) -> None:
    path = inputs(tmp_path / "x.npz", input_ids=np.ones((1, 3), np.int64))
    (tmp_path / "o.npz").mkdir()
    said = sentence(run("run", write_bundle(tmp_path / "b"), "--inputs", path, "-o", tmp_path / "o.npz", "--force"))
    assert "o.npz is a directory; give the name of a file" in said


# -- bundles of the command's own making --------------------------------------------------------------


@pytest.fixture(scope="module")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cross attention (an input of real numbers), distances clipped, and no longer input than the table has."""
    target = tmp_path_factory.mktemp("bundles") / "b"
    wanted = ConvertOptions(
        settings=[s.removeprefix("--set=") for s in (*TINY, *CLIPPED)],
        beyond="clip",
        max_length=23,
        lengths=[3],
    )
    assert convert("encoder-relative-key", target, wanted).good
    return target


CLIPPED = ("--set=max_positions=23", "--set=cross_attention=true")


@pytest.mark.all
def test_a_limit_that_equals_the_table_is_kept(run: Command, clipped: Path) -> None:
    against = ("--against", "encoder-relative-key", *TINY, *CLIPPED)
    code, out, err = run("verify", clipped, *against, "--length", "23", "--length", "24")
    assert (code, err) == (0, "")
    assert "24 |   rejected" in out


def test_numbers_that_float32_cannot_hold(clipped: Path) -> None:
    states = np.full((1, 2, 20), 1e39)
    with pytest.raises(PosexportError, match=r"encoder_hidden_states holds 1e\+39 at .*; it takes finite numbers"):
        load(clipped).run({"input_ids": [[1, 2]], "encoder_hidden_states": states})


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("inputs", lambda m: m["inputs"][0].update(size=1000)),
        ("outputs", lambda m: m["outputs"][0].update(name="other")),
        ("limits", lambda m: m["limits"].update(max_length=100)),
        ("task", lambda m: m.update(task="fill-mask")),
        ("encoding", lambda m: m["encoding"]["parameters"].update(clip=7)),
    ],
)
def test_a_manifest_that_promises_another_model(
    run: Command, clipped: Path, tmp_path: Path, field: str, change: Callable[[dict[str, object]], None]
) -> None:
    bundle = tmp_path / "b"
    shutil.copytree(clipped, bundle)
    manifest = json.loads((bundle / "posexport.json").read_text())
    change(manifest)
    (bundle / "posexport.json").write_text(json.dumps(manifest))
    assert f"posexport.json gives other {field} than model.onnx does" in sentence(run("verify", bundle))


def test_weights_that_may_not_be_read(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def opened(path: Path, mode: str = "r", **options: object) -> object:
        if path.name == "model.safetensors":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, mode, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", opened)
    said = sentence(run("convert", GOLDEN / "bert-absolute", "-o", tmp_path / "b"))
    assert said.endswith("model.safetensors cannot be read: Permission denied; make it readable\n")


@pytest.mark.parametrize(
    ("args", "output"),
    [
        (["convert", "encoder-nope"], "b"),
        (["plot", "t5"], "p.png"),
        (["report", "BUNDLE"], "r.html"),
        (["run", "BUNDLE", "--text", "a"], "y.npz"),
        (["audit", "BUNDLE/model.onnx", "--fix", "PX101"], "m.onnx"),
        (["deploy", "BUNDLE", "--to", "docker"], "d"),
        (["compare"], "c"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_full_disk_is_known_at_the_start(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], output: str
) -> None:
    bundle = tmp_path / "bundle"
    write_bundle(bundle)
    (tmp_path / "full").mkdir()

    def full(_: Path, __: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def begun(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the work began")

    monkeypatch.setattr(Path, "write_bytes", full)
    for work in ("conversion.convert._into", "study.plots.draw.drawing", "inspect.report.report.check_hashes"):
        monkeypatch.setattr(f"posexport.{work}", begun)
    for work in ("run.answer.load", "inspect.audit.fix.Subject", "serve.deploy.write.check_hashes"):
        monkeypatch.setattr(f"posexport.{work}", begun)
    monkeypatch.setattr("posexport.study.compare.comparison._work", begun)
    place = tmp_path / "full" / output
    said = sentence(run(*(arg.replace("BUNDLE", str(bundle)) for arg in args), "-o", place))
    assert said.startswith(f"posexport: cannot write {place}: No space left on device")


def test_an_inlined_graph_opens_without_a_warning(tmp_path: Path) -> None:
    wanted = ConvertOptions(settings=tuple(s.removeprefix("--set=") for s in TINY), inline=True, verify=False)
    convert("encoder-shaw-kv", tmp_path / "b", wanted)
    model = ir.load(tmp_path / "b" / "model.onnx")
    assert "CastLike" not in {node.op_type for node in ir.traversal.RecursiveGraphIterator(model.graph)}
    assert [value.shape for value in model.graph.outputs] == [ir.Shape(["batch_size", "sequence_length", 20])]
    script = "import sys, onnxruntime; onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"
    command = [sys.executable, "-c", script, str(tmp_path / "b" / "model.onnx")]
    assert "constant_folding" not in subprocess.run(command, capture_output=True, text=True, check=True).stderr
