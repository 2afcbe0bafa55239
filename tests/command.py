"""``posexport`` as a user calls it, in this process: a process of its own takes seconds to import PyTorch."""

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from posexport.cli import main


@dataclass(frozen=True)
class Ended:
    """What `subprocess.run` would tell of the command."""

    returncode: int
    stdout: str
    stderr: str


def posexport(*arguments: str | Path, cwd: Path | None = None) -> Ended:
    """Runs ``posexport ARGUMENTS`` in the directory ``cwd``."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    before = Path.cwd()
    code: object = 0
    with (
        mock.patch.object(sys, "argv", ["posexport", *map(str, arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        os.chdir(cwd or before)
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        finally:
            os.chdir(before)
    assert isinstance(code, int)
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Ended(code, *texts)
