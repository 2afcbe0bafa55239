"""The terminal that a result is printed on: how wide it is, and whether it shows colours."""

import os
import shutil
import sys
from typing import TypedDict


class Fit(TypedDict, total=False):
    """Arguments of ``to_text``."""

    width: int
    colour: bool


def fit() -> Fit:
    """For stdout; empty where it is no terminal, so that files and pipes get whole sentences."""
    if not sys.stdout.isatty():
        return {}
    return {"width": max(shutil.get_terminal_size().columns, 40), "colour": _has_colours()}


def _has_colours() -> bool:
    """As the conventions NO_COLOR and TERM=dumb say."""
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
