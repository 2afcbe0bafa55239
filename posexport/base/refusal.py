"""The result of a function that found a reason against what it was asked for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """Why something cannot be done, or is left as it is."""

    reason: str
