"""What a module does along the token axis, found by running it at several lengths.

Calls are compared by their lines and their order in forward. A size is compared with the length of each run, and
counts where it follows it in all: a length may equal a size that has nothing to do with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from posexport.modules.plain.sites import Site
from posexport.nn.cached_call import NotCachedError


class NotCausalError(NotCachedError):
    """The module is no decoder: none of its attention is causal."""


@dataclass(frozen=True)
class Count:
    """An arange of the new tokens, from ``start``."""

    start: int | float


@dataclass(frozen=True)
class Rows:
    """The rows of a table of ``size`` rows that belong to the new tokens, from ``start``.

    ``which``: of the axes that the index slices.
    """

    start: int
    size: int
    which: int


@dataclass(frozen=True)
class Numbers:
    """The tokens numbered from 1 on, by a cumulative sum of a mask or of ones."""


@dataclass(frozen=True)
class Last:
    """The last token alone, in a module that returns its logits: the decoder goes on with all of them."""


@dataclass(frozen=True)
class Scores:
    """The product of queries and keys of attention by hand."""


@dataclass(frozen=True)
class Context:
    """The product of probabilities and values of attention by hand.

    ``scale``: of the scores before it, of all heads or of each. ``cap``: what scaled scores never exceed.
    """

    scale: tuple[float, ...]
    cap: float | None = None


Step = Count | Rows | Numbers | Last | Scores | Context | None


class PlannedCall(NamedTuple):
    """A counted call: the kind of its function (`sites.SITES`), its line in any file, and what it is."""

    kind: str
    site: Site
    step: Step


@dataclass(frozen=True)
class Plan:
    """``calls``: every counted call, in order. ``shapes``: KV heads and head size of every attention.

    ``token``: the name of the input of ids. ``windows``: of every attention, where one has a window.
    ``slopes``: of every attention, where one has ALiBi; those of another are empty.
    """

    token: str
    calls: list[PlannedCall]
    shapes: list[tuple[int, int]]
    slopes: list[tuple[float, ...]] = field(default_factory=list)
    windows: list[int | None] = field(default_factory=list)

    @property
    def counts(self) -> bool:
        """Whether tokens are numbered in forward itself."""
        return any(isinstance(call.step, Count | Rows | Numbers) for call in self.calls)

    @property
    def of_last(self) -> bool:
        """Whether forward itself returns the logits of the last token alone."""
        return any(isinstance(call.step, Last) for call in self.calls)


@dataclass
class Noted:
    """One run.

    ``calls``: every counted call; ``lines``: those of the user's own code that make them;
    ``causal``: how many of its attentions see no later tokens;
    ``refused``: why a cache cannot go through one, and its line; ``windows``: that of every attention, and its line;
    ``slopes``: of ALiBi's bias in every attention.
    """

    calls: list[PlannedCall]
    lines: list[str]
    shapes: list[tuple[int, int]]
    causal: int
    refused: list[str]
    windows: list[tuple[int | None, str]]
    slopes: list[tuple[float, ...]]

    @property
    def kinds(self) -> list[tuple[str, Site]]:
        """What is called where."""
        return [(call.kind, call.site) for call in self.calls]

    @property
    def attentions(self) -> tuple[object, ...]:
        """What is compared of two runs."""
        return (self.shapes, self.causal, self.refused, [len(slopes) for slopes in self.slopes])


def agreed(token: str, runs: Sequence[Noted]) -> Plan:
    """What is the same at two lengths or more: a length that equals a size of the module misleads one run.

    Raises:
        NotCachedError: attention that a cache cannot go through, or calls that depend on the length.
    """
    alike = max(([run for run in runs if run.attentions == each.attentions] for each in runs), key=len)
    first = alike[0]
    if not first.causal:
        raise NotCausalError(first.refused[0] if first.refused else "it has no attention that posexport recognises")
    if first.refused:
        raise NotCachedError(first.refused[0])
    other = next((run for run in runs if run.kinds != first.kinds), None)
    if other or len(alike) == 1:
        lines = [b for a, b in zip(first.lines, other.lines, strict=False) if a != b] if other else []
        raise NotCachedError("forward makes other calls at other lengths" + (f" ({lines[0]})" if lines else ""))
    calls = [
        same[0] if _same([call.step for call in same]) else same[0]._replace(step=None)
        for same in zip(*(run.calls for run in alike), strict=True)
    ]
    return Plan(token, calls, first.shapes, first.slopes)


def _same(steps: Sequence[Step]) -> bool:
    """``Context`` is compared by kind: its scale is measured."""
    return len({step if not isinstance(step, Context) else Context for step in steps}) == 1


@dataclass(frozen=True)
class Order:
    """What causality and padding leave.

    ``real_BT``: tokens that are no padding. ``window``: how many tokens, itself among them, a query sees; None: all.
    ``slopes``: of ALiBi's bias, for every head; none: there is no bias.
    """

    real_BT: Tensor
    window: int | None = None
    slopes: tuple[float, ...] = ()

    @property
    def causal_TT(self) -> Tensor:
        """Keys that are not after the query, nor out of its window."""
        length = self.real_BT.shape[1]
        seen_TT = self.real_BT.new_ones(length, length).tril()
        return seen_TT if self.window is None else seen_TT.triu(1 - self.window)

    @property
    def kept_BTT(self) -> Tensor:
        """Keys that are neither after the query nor padding."""
        return self.causal_TT & self.real_BT[:, None]
