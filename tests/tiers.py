"""Two tiers of tests: the short one runs for every change, the long one (``@pytest.mark.all``) in samples and by --all.

``@pytest.mark.all(but=("gpt2",))`` leaves the cases of a function with ``gpt2`` in their ids in the short tier.
"""

import pytest


def is_long(item: pytest.Item) -> bool:
    """Whether a test is of the long tier."""
    return any(not any(part in item.name for part in mark.kwargs.get("but", ())) for mark in item.iter_markers("all"))


def check(items: list[pytest.Item]) -> None:
    """Refuse a part of ``but`` that no id of its function has: the case that it was written for would run nowhere.

    Raises:
        UsageError: with the functions and parts.
    """
    parts, used = set[tuple[str, str]](), set[tuple[str, str]]()
    for item in items:
        function = item.nodeid.partition("[")[0]
        for mark in item.iter_markers("all"):
            parts |= {(function, part) for part in mark.kwargs.get("but", ())}
            used |= {(function, part) for part in mark.kwargs.get("but", ()) if part in item.name}
    if parts != used:
        raise pytest.UsageError(f"marks all(but=...) name what no id has: {sorted(parts - used)}")
