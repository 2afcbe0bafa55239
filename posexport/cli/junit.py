"""The option ``--junit FILE``: a report as JUnit XML, whatever the verdict."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from posexport.errors import PosexportError

if TYPE_CHECKING:
    from posexport.parity.report.report import Report

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
    from posexport.parity.report.report import junit, junit_error
    from posexport.system.files import check_free, write_whole

    check_free(path, force=True)
    name = bundle.resolve().name
    try:
        yield lambda report: write_whole(path, junit(report, name), force=True)
    except PosexportError as err:
        write_whole(path, junit_error(str(err), name), force=True)
        raise
