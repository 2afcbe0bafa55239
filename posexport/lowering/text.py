"""Statements in the ONNX text format: put one below the other, and with other names for what they read."""

import re
from collections.abc import Sequence


def named(statements: Sequence[str], **names: str) -> list[str]:
    """Statements with other names for what they read."""
    for old, new in names.items():
        statements = [re.sub(rf"\b{old}\b(?!\w* =)", new, line) for line in statements]
    return list(statements)


def numbered(statements: Sequence[str], number: int) -> list[str]:
    """Statements with ``number`` behind every name that they give, to stand beside others like them."""
    given = {name for line in statements for name in re.split(r", *", line.partition(" = ")[0])}
    found = re.compile(rf"\b({'|'.join(sorted(given))})\b")
    return [found.sub(rf"\1_{number}", line) for line in statements]


def lines(statements: Sequence[str]) -> str:
    """Statements one below the other."""
    return "\n    ".join(statements)
