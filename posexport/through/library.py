"""Imports transformers, which the extra ``posexport[transformers]`` installs, and checks its version."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from posexport.errors import PosexportError

#: the version that ci/through tests with
TESTED = "5.24.0"
_UNCHECKED = "TRANSFORMERS_DISABLE_TORCH_CHECK"


def library(purpose: str) -> Any:
    """Import ``transformers``.

    Raises:
        PosexportError: another major version than `TESTED` is installed; ``purpose`` is the subject of the sentence.
    """
    import transformers

    if _major(transformers.__version__) != _major(TESTED):
        raise PosexportError(
            f"{purpose} needs transformers {_major(TESTED)}, and {transformers.__version__} is installed: "
            "pip install 'posexport[transformers]'"
        )
    return transformers


def remarks(version: str) -> list[str]:
    """A remark if ``version`` is not `TESTED`."""
    if version == TESTED:
        return []
    return [f"transformers {version} is installed; posexport was tested with {TESTED}"]


@contextmanager
def unchecked() -> Iterator[None]:
    """Turn transformers' checks of values off inside the block, which a graph has no way for.

    Issue: huggingface/transformers' ``torch_compilable_check`` raises while a graph is traced. Seen in 5.24.
    """
    before = os.environ.get(_UNCHECKED)
    os.environ[_UNCHECKED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_UNCHECKED]
        else:
            os.environ[_UNCHECKED] = before


def _major(version: str) -> str:
    return version.partition(".")[0]


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Silence transformers' warnings and progress bars inside the block."""
    level, has_bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if has_bars:
            transformers.logging.enable_progress_bar()
