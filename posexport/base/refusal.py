"""The result of a function that refuses, with its reason."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """Why something cannot be done, or is left as it is."""

    reason: str
