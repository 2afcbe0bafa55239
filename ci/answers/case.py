"""One row of the table: what was asked, what the original library answers, and what posexport does."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Case:
    """``ours`` and ``theirs`` are shown in the table, shortened; ``equal`` is judged by whoever asked.

    ``remark``: what posexport says at conversion, where both differ and posexport says why.
    """

    part: str
    asked: str
    library: str
    ours: object
    theirs: object
    equal: bool
    remark: str = ""
