"""Options and arguments of several commands; an option has one meaning in all of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from posexport.base.options.check import did_you_mean
from posexport.base.options.commands import VerifyOptions
from posexport.cli import complete
from posexport.cli.of_record import one_of
from posexport.cli.terminal import set_verbosity
from posexport.errors import PosexportError

if TYPE_CHECKING:
    from posexport.proof.report.report import Report


#: parameters under the heading "Runtime" of ``--help``, for `posexport.cli.command.Command`
RUNTIME = ("provider", "threads")

bundle_argument = click.argument(
    "directory", metavar="DIR", type=click.Path(path_type=Path), shell_complete=complete.bundles
)
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


option = click.option(
    "--junit",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the result as JUnit XML too, for a CI server; replaces FILE.",
)


@contextmanager
def writer(path: Path | None, bundle: Path) -> "Iterator[Callable[[Report], None]]":
    """A function that writes a report on ``bundle`` to ``path`` (None: nowhere); a PosexportError is written too.

    Raises PosexportError, before anything is computed, where ``path`` cannot be written.
    """
    if path is None:
        yield lambda _: None
        return
    from posexport.base.system.files import check_free, write_whole
    from posexport.proof.report.report import junit, junit_error

    check_free(path, force=True)
    name = bundle.resolve().name
    try:
        yield lambda report: write_whole(path, junit(report, name), force=True)
    except PosexportError as err:
        write_whole(path, junit_error(str(err), name), force=True)
        raise


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
    from posexport.base.registry import added_by_packages
    from posexport.sources.registry import OPENERS

    return bool(OPENERS.packages) or any(source.endswith(f"-{name}") for name in added_by_packages("encodings"))
