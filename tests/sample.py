"""``--sample SECONDS``: as many of the tests marked all as the time allows, in an order that ``--sample-seed`` draws.

A commit's hash as the seed gives every commit another sample, so that over some days all of them run. ``--record FILE``
adds what they gave to a file, and leaves out what passed according to it: the long tier in parts, each of them new.
"""

import json
import math
import random
import shlex
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from tests.tiers import is_long

LEFT_OUT = "the time of the sample is used"
_ENDS = pytest.StashKey[float]()
#: what the file of ``--record`` says passed, read before anything is added to it
_PASSED = pytest.StashKey[frozenset[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        type=float,
        metavar="SECONDS",
        help="run tests marked all alone, in a drawn order: none starts after them, none ends a quarter later",
    )
    parser.addoption("--sample-seed", default="", metavar="TEXT", help="what the order is drawn by, such as a commit")
    parser.addoption(
        "--record", type=Path, metavar="FILE", help="of a sample: add results to FILE, and leave out what passed there"
    )


def pytest_configure(config: pytest.Config) -> None:
    record = config.getoption("--record")
    config.stash[_ENDS] = math.inf
    lines = record.read_text().splitlines() if record is not None and record.exists() else []
    results = [json.loads(line) for line in lines]
    config.stash[_PASSED] = frozenset(each["test"] for each in results if each["outcome"] == "passed")
    if record is not None and not hasattr(config, "workerinput"):  # of xdist's processes the first alone writes
        config.pluginmanager.register(_Recorder(record))


class _Recorder:
    """Writes a line for each test: what it gave, in how many seconds, at which commit."""

    def __init__(self, file: Path) -> None:
        self._file = file
        git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        self._commit = git.stdout.strip()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped or (report.when != "call" and report.passed):
            return
        entry = {
            "test": report.nodeid,
            "outcome": report.outcome,
            "seconds": round(report.duration, 1),
            "commit": self._commit,
        }
        with self._file.open("a") as file:
            file.write(json.dumps(entry) + "\n")


@pytest.hookimpl(trylast=True)  # after pytest has brought together what shares a fixture
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every process draws the same order."""
    if config.getoption("--sample") is None:
        return
    passed = config.stash[_PASSED]
    drawn = [item for item in items if is_long(item) and item.nodeid not in passed]
    chosen = set(drawn)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    random.Random(config.getoption("--sample-seed")).shuffle(drawn)
    items[:] = drawn
    # to collect the tests takes as long as some samples
    config.stash[_ENDS] = time.monotonic() + config.getoption("--sample")


@pytest.hookimpl(wrapper=True, trylast=True)  # pytest's wrappers prepare what its teardown needs
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    if time.monotonic() > item.config.stash[_ENDS]:
        pytest.skip(LEFT_OUT)
    with _time_limit(item):
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with _time_limit(item):
        return (yield)


class _TimeIsUp(BaseException):
    """The alarm rang."""


@contextmanager
def _time_limit(item: pytest.Item) -> Iterator[None]:
    """No test goes on long after the end: one that takes an hour is for ``--all``.

    The alarm is set inside the two phases alone, where pytest reports what it raises as a skipped test; one that
    rings while a report is written would be an error. Whatever a phase raises after the alarm is its consequence:
    code that calls a user's module reports every exception in a sentence of its own.
    """
    seconds = item.config.getoption("--sample")
    if seconds is None:
        yield
        return
    rang = False

    def ring(_signal: int, _frame: FrameType | None) -> None:
        nonlocal rang
        rang = True
        raise _TimeIsUp

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(item.config.stash[_ENDS] - time.monotonic(), 0) + seconds / 4)
    try:
        yield
    except BaseException:
        if not rang:
            raise
        pytest.skip(LEFT_OUT)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
    """What the sample did not get to is not listed among the skipped, hundreds of lines."""
    left_out = report.skipped and isinstance(report.longrepr, tuple) and report.longrepr[2].endswith(LEFT_OUT)
    return ("", "", "") if left_out else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What was drawn, and the command that repeats what failed."""
    if config.getoption("--sample") is None:
        return
    stats = terminalreporter.stats
    ran = sum(len(stats.get(kind, ())) for kind in ("passed", "failed", "error"))
    terminalreporter.write_line(f"sample by {config.getoption('--sample-seed')!r}: {ran} tests marked all")
    if failed := dict.fromkeys(report.nodeid for kind in ("failed", "error") for report in stats.get(kind, ())):
        terminalreporter.write_line(f"to repeat it: ./ci/test --all {' '.join(map(shlex.quote, failed))}")
