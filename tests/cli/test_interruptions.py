"""Ctrl-C on the command line: exit code 130, one sentence and no traceback, whatever is being imported."""

import json
import subprocess
import sys

import pytest

from posexport import cli
from posexport.base.system.ending import is_interruption

#: runs the program; Ctrl-C comes when MODULE is about to be imported, in code that is a text, as of dataclasses
PROGRAM = """
import runpy, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE and self in sys.meta_path:
            sys.meta_path.remove(self)
            exec("import os, signal; os.kill(os.getpid(), signal.SIGINT); [0 for _ in range(9)]")

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.meta_path.insert(0, Interrupting())
runpy.run_module("posexport", run_name="__main__", alter_sys=True)
"""
SENTENCE = "posexport: interrupted; what was there before is unchanged"


@pytest.mark.parametrize("module", ["posexport.cli", "click", "msgspec", "numpy", "posexport.cli.list"])
def test_during_an_import(module: str) -> None:
    code = PROGRAM.replace("MODULE", repr(module))
    command = [sys.executable, "-c", code, "list", "encodings", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, SENTENCE)
    assert json.loads(done.stdout)["exit_code"] == 130


def test_an_import_that_reports_it_as_another_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**_: object) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt()  # as pybind11 does

    monkeypatch.setattr(cli, "group", interrupted)
    monkeypatch.setattr(cli, "_own_process", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err.strip() == SENTENCE


def test_a_ring_of_contexts_ends() -> None:
    first, second = ValueError("a"), ImportError("b")
    first.__context__, second.__context__ = second, first
    assert not is_interruption(first)
    second.__cause__ = KeyboardInterrupt()
    assert is_interruption(first)
