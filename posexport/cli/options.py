"""Options and arguments that mean the same everywhere, and the headings that they stand under."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from posexport.cli import complete
from posexport.cli.of_record import one_of
from posexport.cli.progress import set_verbosity
from posexport.conversion.options import ConvertOptions
from posexport.options.recipe import DefinitionName
from posexport.targets.precisions import PRECISIONS
from posexport.targets.provider_options import CUDA_OPTIONS, as_mapping
from posexport.targets.providers import DEFAULT_PROVIDER, PROVIDERS

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
provider_options_option = click.option(
    "--provider-option",
    "provider_options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=lambda _, __, pairs: as_mapping(pairs),
    help=f"Of the provider's session (repeatable); of cuda: {', '.join(CUDA_OPTIONS)}.",
)
variant_option = click.option(
    "--precision",
    type=click.Choice(tuple(PRECISIONS)),
    help="Of a bundle with several precisions, the one to use; default: its first.",
)
threads_option = one_of(ConvertOptions, "threads")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
length_option = one_of(ConvertOptions, "lengths")
task_option = one_of(ConvertOptions, "task")
set_option = one_of(ConvertOptions, "settings")
encoding_set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete.settings,
    help="Set a parameter of the encoding, e.g. --set hidden=128 (repeatable).",
)
allow_pickle_option = one_of(ConvertOptions, "allow_pickle")
definition_option = click.option(
    "--definition",
    type=click.Choice(get_args(DefinitionName)),
    help="How SOURCE computes, as in posexport convert; default: as the bundle was converted, else paper.",
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
