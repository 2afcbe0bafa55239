"""Options and arguments that mean the same everywhere, and the headings that they stand under."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from posexport.cli import complete
from posexport.cli.progress import set_verbosity
from posexport.targets.precisions import PRECISIONS
from posexport.targets.providers import DEFAULT_PROVIDER, PROVIDERS


class RenamedChoice(click.Choice[str]):
    """A choice of which some had other names before, that still work and say the present one."""

    def __init__(self, choices: Sequence[str], renamed: Mapping[str, str]) -> None:
        super().__init__(choices)
        self._renamed = renamed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in self._renamed:
            click.echo(f"posexport: {value} is now called {self._renamed[value]}", err=True)
            value = self._renamed[value]
        return super().convert(value, param, ctx)


#: headings of ``--help``, for `posexport.cli.command.Command`
RUNTIME = ("provider", "threads")

bundle_argument = click.argument(
    "directory", metavar="DIR", type=click.Path(path_type=Path), shell_complete=complete.bundles
)
encoding_argument = click.argument("encoding", shell_complete=complete.names("encodings"))
provider_option = click.option(
    "--provider",
    default=DEFAULT_PROVIDER,
    show_default=True,
    help=f"Execution provider: {' or '.join(PROVIDERS)}. Fails if it is not available.",
)
variant_option = click.option(
    "--precision",
    type=click.Choice(tuple(PRECISIONS)),
    help="Of a bundle with several precisions, the one to use; default: its first.",
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=0, max=1024),
    metavar="N",
    default=0,
    help="Threads of one operator; 0 lets the runtime choose.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
length_option = click.option(
    "--length",
    "lengths",
    type=click.IntRange(min=1),
    metavar="N",
    multiple=True,
    help="Check this length in tokens in place of the default grid (repeatable).",
)
task_option = click.option(
    "--task",
    shell_complete=complete.names("tasks"),
    help="What the model is for, see posexport list tasks; default: from the checkpoint.",
)
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete.settings,
    help="Set an option of a built-in model, e.g. --set layers=4 (repeatable); see posexport list models.",
)
encoding_set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete.settings,
    help="Set a parameter of the encoding, e.g. --set hidden=128 (repeatable).",
)
allow_pickle_option = click.option(
    "--allow-pickle", is_flag=True, help="Also read .bin weights (with weights_only; safetensors are preferred)."
)
as_transformers_option = click.option(
    "--as-transformers",
    is_flag=True,
    help="Where transformers and the paper differ, compute what transformers computes.",
)
_quiet_option = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=set_verbosity,
    help="Print no progress and no remarks, only results and errors.",
)
_verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=set_verbosity,
    help="Print a line for every step, with the time so far.",
)


def verbosity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return _quiet_option(_verbose_option(command))
