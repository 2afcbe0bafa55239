"""Two tiers of tests: the short one runs for every change, the long one in samples and by --all.

Long are tests marked ``@pytest.mark.all`` and those in ``long.txt``, which took more than `SECONDS` of a processor when
``--record-long`` measured them. ``@pytest.mark.all(but=("gpt2",))`` leaves the cases of a function with ``gpt2`` in
their ids in the short tier.
"""

from pathlib import Path

import pytest

#: of processor time, of the test and the processes that it starts
SECONDS = 1.5
LONG = Path(__file__).parent / "long.txt"
MEASURED = frozenset(LONG.read_text().splitlines())


def is_long(item: pytest.Item) -> bool:
    """Whether a test is of the long tier."""
    marked = any(not any(part in item.name for part in mark.kwargs.get("but", ())) for mark in item.iter_markers("all"))
    return marked or item.nodeid in MEASURED


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
    if unknown := MEASURED - {item.nodeid for item in items}:
        raise pytest.UsageError(f"{LONG.name} names tests that do not exist; delete the lines: {sorted(unknown)}")
