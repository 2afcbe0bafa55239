"""Options and arguments of several commands; an option has one meaning in all of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from posexport.cli import complete
from posexport.cli.of_record import one_of
from posexport.cli.progress import set_verbosity
from posexport.options.verify import VerifyOptions

#: parameters under the heading "Runtime" of ``--help``, for `posexport.cli.command.Command`
RUNTIME = ("provider", "threads")

bundle_argument = click.argument(
    "directory", metavar="DIR", type=click.Path(path_type=Path), shell_complete=complete.bundles
)
encoding_argument = click.argument("encoding", shell_complete=complete.names("encodings"))
provider_option = one_of(VerifyOptions, "provider")
provider_options_option = one_of(VerifyOptions, "provider_options")
variant_option = one_of(VerifyOptions, "precision")
threads_option = one_of(VerifyOptions, "threads")
set_option = one_of(VerifyOptions, "settings")
allow_pickle_option = one_of(VerifyOptions, "allow_pickle")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
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


def number_option(flag: str, text: str, *, least: int = 1, most: int | None = None, **more: Any) -> Callable[..., Any]:
    """An option for an integer within bounds."""
    return click.option(flag, type=click.IntRange(least, most), metavar="N", help=text, **more)
