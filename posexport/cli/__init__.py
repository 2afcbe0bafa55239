"""The command line. Every command is in a file of its own name and is imported when it is called."""

import importlib
import sys

import click

from posexport import __version__
from posexport.errors import PosexportError

COMMANDS = ("convert", "list", "run", "verify")


class LazyGroup(click.Group):
    """Imports a command when it is asked for, so that ``posexport --help`` answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        found = getattr(importlib.import_module(f"posexport.cli.{cmd_name}"), "command")  # noqa: B009
        assert isinstance(found, click.Command)
        return found


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="posexport")
def group() -> None:
    """Convert transformers with any position encoding to ONNX: right at every length, and proven.

    Exit codes: 0 good, 1 a finding (parity missed), 2 cannot do it (bad input, missing provider).
    """


def main() -> None:
    """Entry point: what the user can mend is one sentence on stderr and exit code 2."""
    try:
        group(standalone_mode=True)
    except PosexportError as err:
        click.echo(f"posexport: {err}", err=True)
        sys.exit(2)
    except MemoryError:
        click.echo("posexport: out of memory; use fewer threads, shorter --length values or a larger machine", err=True)
        sys.exit(2)
