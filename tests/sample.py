"""``--sample SECONDS``: as many of the tests marked all as the time allows, in an order that ``--sample-seed`` draws.

A commit's hash as the seed gives every commit another sample, so that over some days all of them run.
"""

import math
import random
import shlex
import signal
import time
from collections.abc import Generator
from types import FrameType

import pytest

LEFT_OUT = "the time of the sample is used"
_ENDS = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        type=float,
        metavar="SECONDS",
        help="run tests marked all alone, in a drawn order: none starts after them, none ends a quarter later",
    )
    parser.addoption("--sample-seed", default="", metavar="TEXT", help="what the order is drawn by, such as a commit")


def pytest_configure(config: pytest.Config) -> None:
    seconds = config.getoption("--sample")
    config.stash[_ENDS] = math.inf if seconds is None else time.monotonic() + seconds


@pytest.hookimpl(trylast=True)  # after pytest has brought together what shares a fixture
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every process draws the same order."""
    if config.getoption("--sample") is None:
        return
    found = [item for item in items if item.get_closest_marker("all")]
    config.hook.pytest_deselected(items=[item for item in items if not item.get_closest_marker("all")])
    random.Random(config.getoption("--sample-seed")).shuffle(found)
    items[:] = found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """No test goes on long after the end: one that takes an hour is for ``--all``."""
    seconds = item.config.getoption("--sample")
    if seconds is None:
        return (yield)
    signal.signal(signal.SIGALRM, _leave)
    signal.setitimer(signal.ITIMER_REAL, max(item.config.stash[_ENDS] - time.monotonic(), 0) + seconds / 4)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash[_ENDS]:
        pytest.skip(LEFT_OUT)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    pytest.skip(LEFT_OUT)


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
