"""Statements in the ONNX text format: put one below the other, and with other names for what they read."""

import re
from collections.abc import Sequence


def named(statements: Sequence[str], **names: str) -> list[str]:
    """Statements with other names for what they read."""
    for old, new in names.items():
        statements = [re.sub(rf"\b{old}\b(?!\w* =)", new, line) for line in statements]
    return list(statements)


def lines(statements: Sequence[str]) -> str:
    """Statements one below the other."""
    return "\n    ".join(statements)
