"""Small sources that several tests build."""

from posexport.sources import builtin
from posexport.sources.base import Source

#: Odd sizes, so that no two axes can be confused, and a table short enough to step beyond.
SIZES = ("layers=1", "hidden=20", "heads=5", "feedforward=37", "vocab=61", "max_positions=23")


def source(encoding: str, *settings: str, task: str | None = None) -> Source:
    """A fresh built-in encoder of one layer."""
    given = dict(pair.split("=", 1) for pair in (*SIZES, *settings))
    if encoding in ("sinusoidal", "nope", "shaw-k", "shaw-kv"):
        given.pop("max_positions")
    return builtin.load(
        f"encoder-{encoding}", task=task, settings_given=tuple(f"{key}={value}" for key, value in given.items())
    )
