"""The terminal: its width and colours, and on stderr progress and remarks, as a bar or as a line every few seconds.

``-q`` disables both, ``-v`` prints a line for every step. Results go to stdout.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict

import click

if TYPE_CHECKING:
    from rich.console import Console


class Fit(TypedDict, total=False):
    """Arguments of a record's ``to_text``: the width to wrap at, and whether to print colours."""

    width: int
    colour: bool


def fit() -> Fit:
    """For stdout; empty where it is no terminal, so that files and pipes get whole sentences."""
    if not sys.stdout.isatty():
        return {}
    return {"width": max(shutil.get_terminal_size().columns, 40), "colour": _has_colours()}


def _has_colours() -> bool:
    """As the conventions NO_COLOR and TERM=dumb say."""
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


Progress = Callable[[int, int, str], None]
#: seconds before the first line and between lines; later a tenth of the time that has passed
INTERVAL = 5.0
#: seconds between two lines of a log at most
_MOST = 15.0
#: the total of a proof's steps
_PERCENT = 100
#: seconds from which on a line says what takes less
_LONG = 60.0
_KEY = "posexport.verbosity"
#: consoles with a visible bar; the last one is in front
_shown: list["Console"] = []


def set_verbosity(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value:
        return
    chosen = -1 if parameter.name == "quiet" else 1
    if ctx.meta.setdefault(_KEY, chosen) != chosen:
        raise click.UsageError("-q and -v cannot be given together", ctx)


def verbosity() -> int:
    """-1 for ``-q``, 1 for ``-v``, 0 for neither."""
    ctx = click.get_current_context(silent=True)
    level: int = 0 if ctx is None else ctx.meta.get(_KEY, 0)
    return level


def remark(sentence: str) -> None:
    """Print a sentence for the user, above a visible bar; nothing with ``-q``."""
    if verbosity() < 0:
        return
    if _shown:
        _shown[-1].print(sentence, markup=False, highlight=False)
    else:
        click.echo(sentence, err=True)


@contextmanager
def bar(title: str) -> Iterator[Progress | None]:
    """A callable ``(done, total, what)`` that shows progress; None with ``-q``."""
    if verbosity() < 0:
        yield None
    elif verbosity() > 0:
        yield _Lines().step
    elif sys.stderr.isatty():
        with _bar(title) as progress:
            yield progress
    else:
        with _Lines().ticking() as progress:
            yield progress


@contextmanager
def _bar(title: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Rich

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(file=sys.stderr)
    with Rich(*columns, console=console, transient=True) as shown, _above(console):
        task = shown.add_task(title, total=None)

        def move(done: int, total: int, what: str) -> None:
            shown.update(task, completed=done, total=total, description=f"{title}: {what}" if what else title)

        yield move


@contextmanager
def _above(console: "Console") -> Iterator[None]:
    """Prints remarks through ``console``, above its bar."""
    _shown.append(console)
    try:
        yield
    finally:
        _shown.pop()


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 2 * _LONG else f"{seconds / 60:.0f} min"


class _Lines:
    """Progress as lines: ``proving 12/116, length 17, batch 1, no padding (34 s)``."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._line = self._left = ""
        self._proof_began: float | None = None
        self._advised = False
        self._stop = threading.Event()

    def step(self, done: int, total: int, what: str) -> None:
        self._note(done, total, what)
        self._print()

    @contextmanager
    def ticking(self) -> Iterator[Progress]:
        """Prints lines at intervals from a thread, also between two steps."""
        thread = threading.Thread(target=self._tick, daemon=True)
        thread.start()
        try:
            yield self._note
        finally:
            self._stop.set()
            thread.join()

    def _note(self, done: int, total: int, what: str) -> None:
        if what:
            phase, comma, rest = what.partition(", ")
            # loading and exporting are two steps, a proof has a hundred percent
            count = f" {done}%" if total == _PERCENT else f" {done}/{total}" if total > 2 else ""
            self._line, self._left = f"{phase}{count}{comma}{rest}", self._estimate(done, total)

    def _estimate(self, done: int, total: int) -> str:
        """How long a proof will still take, after its first percents."""
        if total != _PERCENT:
            return ""
        if self._proof_began is None:
            self._proof_began = time.monotonic()
        elapsed = time.monotonic() - self._proof_began
        left = elapsed * (total - done) / done if done > 2 else 0.0
        advice = "; --length N or --proof reduced checks less" if left > _LONG and not self._advised else ""
        self._advised = self._advised or bool(advice)
        return f", about {_in_words(left)} left{advice}" if left > INTERVAL else ""

    def _tick(self) -> None:
        while not self._stop.wait(min(max(INTERVAL, self._elapsed / 10), _MOST)):
            self._print()

    def _print(self) -> None:
        if self._line:
            click.echo(f"{self._line} ({self._elapsed:.0f} s{self._left})", err=True)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._started
