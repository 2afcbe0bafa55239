"""posexport list"""

import json
import textwrap
from itertools import groupby
from typing import Any

import click

from posexport.base.options.check import did_you_mean
from posexport.catalogue.stored import catalogue, kinds
from posexport.cli import options
from posexport.cli.command import Command
from posexport.cli.terminal import fit, remark

KINDS = tuple(kinds())
#: kinds with many entries of the same description, which is printed once
_GROUPED = ("models", "families")


class _Kind(click.Choice[str]):
    """A kind of name; an unknown one gets a suggestion."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices:
            known = ", ".join(self.choices)
            self.fail(f"{value!r} is not one of {known}; {did_you_mean(value, self.choices, 'choose one')}", param, ctx)
        return super().convert(value, param, ctx)


@click.command("list", cls=Command)
@click.argument("kind", type=_Kind(KINDS), default=None, required=False, metavar="[KIND]")
@options.json_option
def command(kind: str | None, as_json: bool) -> None:
    """List encodings, built-in models, checkpoint families ...

    \b
    KIND is one of
        encodings   position encodings (the default)
        models      built-in models, to try an encoding without a checkpoint
        families    Hugging Face checkpoints that can be converted, by model_type
        tasks       what --task takes
        lowerings   what --lowering takes
        ops         position operators
        rules       what audit finds
        providers   execution providers of this machine

    \b
    Example:
        posexport list models
        posexport list families --json
    """
    from posexport.base.system.extras import runtime_conflict

    if kind is None:
        kind = "encodings"
        remark(f"these are the encodings; also: posexport list {' | '.join(other for other in KINDS if other != kind)}")
    entries = [{key: _unquoted(value) for key, value in entry.items()} for entry in catalogue(kind)]
    if kind == "providers" and (conflict := runtime_conflict()):
        click.echo(f"warning: {conflict}", err=True)
    if as_json:
        click.echo(json.dumps(entries, indent=2))
    elif kind in _GROUPED:
        groups = groupby(entries, lambda entry: entry["what"])
        click.echo("\n\n".join(_group(what, list(same)) for what, same in groups))
    else:
        column = max(len(entry["name"]) for entry in entries) + 2
        click.echo("\n".join(_wrapped(entry["name"].ljust(column), entry["what"]) for entry in entries))


def _wrapped(name: str, what: str) -> str:
    """A name and its description, wrapped at the terminal's width; one line where stdout is no terminal."""
    width = fit().get("width")
    if width is None:
        return f"{name}{what}".rstrip()
    return textwrap.fill(what, max(width, len(name) + 20), initial_indent=name, subsequent_indent=" " * len(name))


def _group(what: str, entries: list[dict[str, Any]]) -> str:
    names = "  ".join(sorted(entry["name"] for entry in entries))
    lines = textwrap.wrap(names, fit().get("width", 100) - 4, break_on_hyphens=False, break_long_words=False)
    return "\n    ".join((f"{what}:", *lines))


def _unquoted(value: Any) -> Any:
    """A string without the backquotes of docstrings."""
    return value.replace("``", "").replace("`", "") if isinstance(value, str) else value
