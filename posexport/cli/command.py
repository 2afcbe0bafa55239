"""Commands with grouped options, and suggestions for unknown commands and options."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from posexport.cli.other_tools import COMMANDS as OTHER_COMMANDS
from posexport.cli.other_tools import about_option
from posexport.options.suggest import closest, did_you_mean

_PROGRAM = "posexport"


class _Help(click.Command):
    """Help under two names, whatever context asks first: click keeps the option that it made then."""

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        return ["-h", "--help"]


class Command(_Help):
    """A command of posexport.

    ``groups``: parameter names by heading in ``--help``; the others are listed last.
    """

    def __init__(
        self,
        *args: Any,
        groups: Mapping[str, Sequence[str]] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.groups = groups or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses arguments; an unknown option that another tool has gets a sentence on what to type."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as err:
            raise click.UsageError(self._about(err.option_name), ctx) from err

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {
            parameter.name: record
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)) is not None
        }
        groups = {title: [name for name in names if name in records] for title, names in self.groups.items()}
        grouped = {name for names in groups.values() for name in names}
        groups["Other options" if grouped else "Options"] = [name for name in records if name not in grouped]
        for title, names in groups.items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([records[name] for name in names])

    def _about(self, name: str) -> str:
        argument = next((each.human_readable_name for each in self.params if isinstance(each, click.Argument)), None)
        sentence = about_option(name, self.name or "", argument)
        if sentence is not None:
            return f"posexport {self.name} has no {name}: {sentence}"
        known = [text[2:] for each in self.params for text in each.opts if text.startswith("--")]
        match = closest(name.lstrip("-"), known)
        return f"No such option {name}; " + (
            f"did you mean --{match}?" if match else f"see {_PROGRAM} {self.name} --help"
        )


class Group(_Help, click.Group):
    """A group of commands that suggests one for an unknown name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            raise click.UsageError(unknown_command(name, self.list_commands(ctx), self._path(ctx)), ctx)
        return super().resolve_command(ctx, args)

    def _path(self, ctx: click.Context) -> str:
        return _PROGRAM if ctx.parent is None else f"{_PROGRAM} {self.name}"


def unknown_command(name: str, known: Sequence[str], group: str = _PROGRAM) -> str:
    """The error message for an unknown command: the closest name, or what to type instead."""
    if group == _PROGRAM and (sentence := OTHER_COMMANDS.get(name)):
        return f"posexport has no command {name!r}: {sentence}"
    return f"No such command {name!r}; {did_you_mean(name, known, f'see {group} --help')}"
