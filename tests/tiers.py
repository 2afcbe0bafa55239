"""Two tiers of tests: the short one runs for every change, the long one in samples and by --all.

Long are tests marked ``@pytest.mark.all`` and those in ``long.txt``, which took more than `SECONDS` of a processor when
``--record-long`` measured them. ``@pytest.mark.all(but=("gpt2",))`` leaves the cases of a function with ``gpt2`` in
their ids in the short tier.
"""

import os
from pathlib import Path

import pytest

#: of processor time, of the test and the processes that it starts
SECONDS = 3.0
_FILE = Path(__file__).parent / "long.txt"
_MEASURED = frozenset(_FILE.read_text().splitlines())


def is_long(item: pytest.Item) -> bool:
    """Whether a test is of the long tier."""
    marked = any(not any(part in item.name for part in mark.kwargs.get("but", ())) for mark in item.iter_markers("all"))
    return marked or item.nodeid in _MEASURED


def check(items: list[pytest.Item]) -> None:
    """Refuse a part of ``but`` that no id of its function has: the case that it was written for would run nowhere.

    Raises:
        UsageError: with the functions and parts, or with the tests of ``long.txt`` that do not exist.
    """
    parts, used = set[tuple[str, str]](), set[tuple[str, str]]()
    for item in items:
        function = item.nodeid.partition("[")[0]
        for mark in item.iter_markers("all"):
            parts |= {(function, part) for part in mark.kwargs.get("but", ())}
            used |= {(function, part) for part in mark.kwargs.get("but", ()) if part in item.name}
    if parts != used:
        raise pytest.UsageError(f"marks all(but=...) name what no id has: {sorted(parts - used)}")
    if unknown := _MEASURED - {item.nodeid for item in items}:
        raise pytest.UsageError(f"{_FILE.name} names tests that do not exist; delete the lines: {sorted(unknown)}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-long", action="store_true", help="add the tests that take long now to long.txt")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-long"):
        config.pluginmanager.register(_Recorder())


class _Recorder:
    """Adds tests to ``long.txt``; the processes of pytest-xdist measure, the first of all writes."""

    def __init__(self) -> None:
        self._long: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        item.stash[_BEGAN] = _processor_time()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            item.user_properties.append((_TOOK, _processor_time() - item.stash[_BEGAN]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if float(str(dict(report.user_properties).get(_TOOK, 0))) > SECONDS:
            self._long.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            _FILE.write_text("".join(f"{test}\n" for test in sorted(_MEASURED | self._long)))


_TOOK, _BEGAN = "processor time", pytest.StashKey[float]()


def _processor_time() -> float:
    """Of this process and those that have ended."""
    return sum(os.times()[:4])
