"""``torch.onnx.export`` asks nobody whether the program that it captured is worth translating.

What sizes became is known by then. Reason: the translation takes more than half of an export, and a graph that has an
axis fixed is refused or captured once more. Its strategies catch exceptions and try another one. Seen in 2.13.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram

from posexport.sources.torch_fixes.patch import patched


class _Stopped(BaseException):
    """Carries an error past the exporter."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def with_programs_checked(check: Callable[[ExportedProgram], None]) -> Iterator[None]:
    """Inside the block ``check`` is called with what was captured; an exception of it ends the export."""
    export: Callable[..., ExportedProgram] = torch.export.export

    def checked(*args: Any, **options: Any) -> ExportedProgram:
        program = export(*args, **options)
        try:
            check(program)
        except Exception as err:
            raise _Stopped(err) from err
        return program

    try:
        with patched(torch.export, "export", checked):
            yield
    except _Stopped as stopped:
        raise stopped.error from None
