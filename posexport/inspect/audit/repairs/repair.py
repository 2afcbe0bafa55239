"""The record of a repair, and why a place is left as it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from posexport.inspect.audit.rule import Place
    from posexport.inspect.audit.subject import Subject


class NotRepairedError(Exception):
    """Why a place is left as it is, as a clause."""


@dataclass(frozen=True)
class Repair:
    """How the faults of one rule are repaired.

    Attributes:
        does: one clause: what is changed.
        apply: changes the graph at one place, and returns the values that are computed in another way now; raises
            NotRepairedError where it cannot.
    """

    does: str
    apply: "Callable[[Subject, Place], list[ir.Value]]"
