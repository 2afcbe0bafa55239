"""Rejects an impossible source before PyTorch is imported."""

from pathlib import Path

import click

from posexport.errors import PosexportError
from posexport.options.suggest import did_you_mean


def check_source(ctx: click.Context, _parameter: click.Parameter, source: str) -> str:
    """Returns ``source``; raises PosexportError for a missing path or an unknown built-in model.

    ``owner/name`` may be a repository of the Hugging Face Hub, and passes.
    """
    if ctx.resilient_parsing or Path(source).exists() or source.rpartition(":")[0].endswith(".py"):
        return source
    if source.endswith(".py"):
        raise PosexportError(f"no such file: {source}; give file.py:factory")
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise PosexportError(
            f"no such directory: {source}; give one with config.json and model.safetensors, a built-in model "
            "(posexport list models) or file.py:factory"
        )
    if "/" not in source:
        from posexport.catalogue.stored import names

        known = names("models")
        if source not in known and not _of_a_package(source):
            hint = did_you_mean(source, known, "see posexport list models")
            raise PosexportError(
                f"{source} is neither a directory, a Hub id (org/name), a file.py:factory nor a built-in model; {hint}"
            )
    return source


def _of_a_package(source: str) -> bool:
    """Whether the source may be of a kind, or have an encoding, that an installed package adds."""
    from posexport.registry import added_by_packages
    from posexport.sources.registry import OPENERS

    return bool(OPENERS.packages) or any(source.endswith(f"-{name}") for name in added_by_packages("encodings"))
