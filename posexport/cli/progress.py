"""Progress on stderr, on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int, str], None]


@contextmanager
def bar(title: str) -> Iterator[Progress | None]:
    """A callable ``(done, total, what)`` that moves a bar; None where stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Rich

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Rich(*columns, console=Console(file=sys.stderr), transient=True) as shown:
        task = shown.add_task(title, total=None)

        def move(done: int, total: int, what: str) -> None:
            shown.update(task, completed=done, total=total, description=f"{title}: {what}" if what else title)

        yield move
