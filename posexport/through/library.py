"""The library transformers, which the extra ``posexport[transformers]`` installs: asked for here alone."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from posexport.errors import PosexportError

#: the version that ci/through converts its checkpoints with
TESTED = "5.24.0"


def library(purpose: str) -> Any:
    """The module ``transformers``, which is installed.

    Raises:
        PosexportError: it is of another major version than the one tested; ``purpose`` begins the sentence.
    """
    import transformers

    if _major(transformers.__version__) != _major(TESTED):
        raise PosexportError(
            f"{purpose} needs transformers {_major(TESTED)}, and {transformers.__version__} is installed: "
            "pip install 'posexport[transformers]'"
        )
    return transformers


def remarks(version: str) -> list[str]:
    """That the installed version is not the tested one; nothing where it is."""
    if version == TESTED:
        return []
    return [f"transformers {version} is installed; posexport was tested with {TESTED}"]


def _major(version: str) -> str:
    return version.partition(".")[0]


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Keep its warnings and progress bars from the user; afterwards they are as they were."""
    level, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.logging.enable_progress_bar()
