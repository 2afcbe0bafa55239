"""What a trained model is asked: its source, calls, and answers that can be told right from wrong."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ci.lab.trained.fetch import CACHE, fetched

Arrays = dict[str, NDArray[Any]]
#: a call of a model
Run = Callable[[Arrays], Arrays]


@dataclass(frozen=True, kw_only=True)
class Case:
    """``ask`` puts all questions to a model and returns a number for each.

    module: of PyTorch, that answers by the package's own code or by transformers'.
    source: the folder that is converted, where it is not the module with its ``example``.
    truth: the answers that are known to be right; none where there are the module's alone.
    tolerance: by how much an answer may differ.
    others: the package's own files of other formats.
    """

    module: nn.Module
    ask: Callable[[Run], NDArray[Any]]
    example: dict[str, Tensor] | None = None
    source: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)
    truth: NDArray[Any] | None = None
    tolerance: float = 0.0
    others: dict[str, Run] = field(default_factory=dict)

    def equal(self, answers: NDArray[Any], others: NDArray[Any]) -> int:
        """How many answers are the same."""
        return int((np.abs(answers.astype(float) - others.astype(float)) <= self.tolerance).sum())


@dataclass(frozen=True, kw_only=True)
class Entry:
    package: str
    what: str
    make: Callable[[Path], Case]


#: by name: the package, what is asked, and what makes the case of the package's folder
CASES: dict[str, Entry] = {}


def case(package: str, what: str) -> Callable[[Callable[[Path], Case]], Callable[[Path], Case]]:
    """Register a case under its function's name."""

    def add(make: Callable[[Path], Case]) -> Callable[[Path], Case]:
        CASES[make.__name__] = Entry(package=package, what=what, make=make)
        return make

    return add


def made(name: str) -> Case:
    """A case, with its package on the path, behind the environment's own and before what it requires."""
    folder = fetched(CASES[name].package)
    sys.path += [str(folder), str(CACHE / "required")]
    return CASES[name].make(folder)
