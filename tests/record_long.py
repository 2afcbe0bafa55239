"""``--record-long``: measures the processor time of tests, and adds those that take long to ``long.txt``."""

import os

import pytest

from tests.tiers import LONG, MEASURED, SECONDS

_TOOK, _BEGAN = "processor time", pytest.StashKey[float]()


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
            LONG.write_text("".join(f"{test}\n" for test in sorted(MEASURED | self._long)))


def _processor_time() -> float:
    """Of this process and those that have ended."""
    return sum(os.times()[:4])
