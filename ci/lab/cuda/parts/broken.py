"""Fails on purpose, so that the rehearsal shows that the other parts run all the same."""

import os

from part import Part, Row, Setup


def run(case: str, setup: Setup) -> Row:
    """One case says that it failed, one raises, one takes its process along."""
    del setup
    if case == "ends its process":
        os._exit(9)
    if case == "raises":
        raise RuntimeError("on purpose")
    return {"passed": case == "passes", "note": "on purpose"}


CASES = ("fails", "raises", "ends its process", "passes")
PART = Part("broken", "nothing: fails on purpose", lambda _: list(CASES), run, rehearsed=True)
