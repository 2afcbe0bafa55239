"""What someone meets in the first hour: pipes, threads, pickles, names of wrapped checkpoints, two runs at once."""

import json
import pickle
import shutil
import threading
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

import posexport
from posexport.cli import group, terminal
from posexport.conversion import write
from posexport.conversion.graphs import Export
from posexport.errors import PosexportError
from posexport.run import arrays
from posexport.run.arrays import read_arrays

TINY: dict[str, Any] = {"settings": {"layers": 1, "hidden": 12, "heads": 2, "feedforward": 7, "vocab": 11}}
CHECKPOINT = Path(__file__).parents[1] / "embedders" / "bert-mean" / "model"


def npz() -> bytes:
    out = BytesIO()
    np.savez(out, input_ids=np.array([[1, 2]]))
    return out.getvalue()


@pytest.mark.parametrize("data", [b' {"input_ids": [[1, 2]]}', npz()], ids=["json", "npz"])
def test_inputs_come_from_standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(arrays, "sys", SimpleNamespace(stdin=SimpleNamespace(buffer=BytesIO(data))))
    assert np.array_equal(read_arrays(Path("-"))["input_ids"], [[1, 2]])


def test_nothing_on_standard_input_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "sys", SimpleNamespace(stdin=SimpleNamespace(buffer=BytesIO(b"\n"))))
    with pytest.raises(PosexportError, match="the inputs that are piped in are empty"):
        read_arrays(Path("-"))


def test_texts_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = SimpleNamespace(stdin=SimpleNamespace(buffer=BytesIO(b"a cat\n\n a dog\n")))
    monkeypatch.setattr(arrays, "sys", piped)
    assert arrays.read_texts(Path("-")) == ["a cat", "a dog"]
    with pytest.raises(PosexportError, match="standard input has no texts; give at least one"):
        arrays.read_texts(Path("-"))


def test_a_length_that_cannot_be_checked_is_told_before_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Export, "__call__", lambda *_, **__: pytest.fail("it was exported"))
    with pytest.raises(PosexportError, match="none of the lengths 900 can be compared: the model takes at most 128"):
        posexport.convert("encoder-absolute", tmp_path / "b", lengths=[900], **TINY)


def test_a_decoder_continues_ids_of_a_file(tmp_path: Path) -> None:
    posexport.convert("decoder-rope", tmp_path / "b", verify=False, **TINY)
    (tmp_path / "ids.json").write_text('{"input_ids": [[1, 2, 3], [4, 5]]}')
    session = posexport.load(tmp_path / "b")
    expected = [each.tokens for each in session.generate([[1, 2, 3], [4, 5]], max_new_tokens=3).completions]
    words = ["generate", str(tmp_path / "b"), "--inputs", str(tmp_path / "ids.json"), "--max-new-tokens", "3", "--json"]
    done = CliRunner().invoke(group, words)
    assert [each["tokens"] for each in json.loads(done.stdout)["completions"]] == expected


def test_two_conversions_in_two_threads(tmp_path: Path) -> None:
    verdicts: list[str] = []
    names = ("encoder-t5", "encoder-rope")

    def run(name: str) -> None:
        verdicts.append(posexport.convert(name, tmp_path / name, lengths=[5], **TINY).verdict)

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == ["checked at 5 tokens, not proven"] * 2


def test_an_output_that_another_run_made_is_known_before_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, proven = tmp_path / "bundle", []

    def exported(*given: Any, **how: Any) -> Any:
        shutil.copytree(tmp_path / "first", output)
        return whole(*given, **how)

    posexport.convert("encoder-t5", tmp_path / "first", lengths=[5], **TINY)
    whole = Export.__call__
    monkeypatch.setattr(Export, "__call__", exported)
    monkeypatch.setattr(write, "_prove", lambda *_: proven.append(1))
    with pytest.raises(PosexportError, match=r"already exists; give --force"):
        posexport.convert("encoder-t5", output, lengths=[5], **TINY)
    assert not proven


def test_a_session_is_no_message_to_another_process(tmp_path: Path) -> None:
    posexport.convert("encoder-t5", tmp_path / "b", verify=False, **TINY)
    with pytest.raises(PosexportError, match=r"cannot be pickled .*posexport\.load\('.*b'\)"):
        pickle.dumps(posexport.load(tmp_path / "b"))


def test_names_are_what_is_promised() -> None:
    assert dir(posexport) == sorted(posexport.__all__)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "0.auto_model.", "module._orig_mod.0.auto_model."])
def test_a_wrappers_prefix_is_left_out_and_told(tmp_path: Path, prefix: str) -> None:
    plain, wrapped = tmp_path / "plain", tmp_path / "wrapped"
    shutil.copytree(CHECKPOINT, wrapped)
    tensors = load_file(wrapped / "model.safetensors")
    save_file({prefix + name: tensor for name, tensor in tensors.items()}, wrapped / "model.safetensors")
    posexport.convert(str(CHECKPOINT), plain, verify=False)
    done = posexport.convert(str(wrapped), tmp_path / "out", verify=False)
    assert f"all tensors are called {prefix}..., as a wrapper saved them; the prefix is left out" in done.remarks
    ids = {"input_ids": [[5, 9, 7, 3]]}
    ours, theirs = (posexport.load(path).run(ids) for path in (tmp_path / "out", plain))
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_a_remark_goes_above_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal._bar("Converting") as move:
        move(1, 2, "exporting")
        terminal.remark("a remark [of its own]")
    lines = capsys.readouterr().err.splitlines()
    assert "a remark [of its own]" in lines


def test_help_names_the_opsets_that_are_written(tmp_path: Path) -> None:
    text = " ".join(CliRunner().invoke(group, ["convert", "--help"]).output.split())
    assert "default 18, with --target cpu 23, with --target cuda 24" in text
    for target, opset in (("portable", 18), ("cpu", 23)):
        done = posexport.convert("encoder-t5", tmp_path / target, target=target, verify=False, **TINY)
        assert done.manifest is not None
        assert done.manifest.opset == opset
