"""Why a table has no figure for a candidate at a point, in one clause."""

import re

from posexport.inspect.bench.records import Figure
from posexport.inspect.bench.tables import differs

_LONGEST = 200


def reason(figure: Figure) -> str | None:
    """Of a candidate that failed, gave another model's answer or was not measured; None where there are figures."""
    if figure.failed is not None:
        return _clause(figure.failed)
    if figure.wrong:
        return "; ".join(part for part in (differs(figure), figure.remark) if part)
    return None if figure.left_out is None else _clause(figure.left_out)


def _clause(text: str) -> str:
    """The first sentence, exceptions without their modules."""
    first = re.split(r"(?<=[^.])\. ", re.sub(r"\b(?:[a-z_]\w*\.){2,}([A-Z])", r"\1", text))[0]
    return first if len(first) <= _LONGEST else f"{first[: _LONGEST - 1]}…"


class Notes:
    """Numbered footnotes of a table: each reason once, under a number that its cells repeat."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def cell(self, word: str, why: str) -> str:
        """``word`` with the number of its reason."""
        return f"{word} [{self._numbers.setdefault(why, len(self._numbers) + 1)}]"

    @property
    def lines(self) -> list[str]:
        """The notes in Markdown, a line each; as code, since messages hold any characters."""
        return [f"[{number}] `{why.replace('`', chr(39))}`" for why, number in self._numbers.items()]
