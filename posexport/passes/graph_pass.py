"""What every graph pass says about itself, and what it answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import onnx_ir as ir

from posexport.targets.target import Target


@dataclass(frozen=True)
class PassResult:
    """``nodes``: places in the graph that changed. ``rejected``: why other places did not, each reason once.

    ``recognised``: what was found in those that did, where there are kinds of it.
    """

    nodes: int = 0
    rejected: tuple[str, ...] = ()
    recognised: tuple[str, ...] = ()

    @classmethod
    def of(cls, reasons: Sequence[str | None]) -> Self:
        """Of one entry for every place that was looked at: None where it changed, else why it did not."""
        return cls(reasons.count(None), tuple(dict.fromkeys(reason for reason in reasons if reason)))


class GraphPass(ABC):
    """One change of a traced graph that keeps what it computes.

    Attributes:
        name: what the manifest and ``only`` of `pipeline.run` call it.
        description: one line for lists and documentation.
        prepares: the only lowering that profits; the pass is left out where ``--lowering`` asks for another one.
    """

    name: str
    description: str
    prepares: str | None = None

    def refusal(self, target: Target) -> str | None:
        """Why no graph for ``target`` can have it; None where it can."""
        return None

    def why_not_preferred(self, target: Target) -> str | None:
        """Why it is left out although it applies, such as that it is slower; None where it is worth having."""
        return target.unprofitable(self.name)

    @abstractmethod
    def apply(self, model: ir.Model, target: Target) -> PassResult:
        """Change ``model`` in place."""


class Rule(NamedTuple):
    """A rule of onnxscript's rewriter; ``refusal`` takes the pattern's variables by name and gives a reason or None."""

    pattern: Callable[..., Any]
    replacement: Callable[..., Any]
    refusal: Callable[..., str | None]


def by_rules(rules: Mapping[str, Rule], model: ir.Model) -> PassResult:
    """Apply ``rules``, by name, with operands of commutative operators in either order."""
    from onnxscript.rewriter import pattern

    #: by the values of a match, as an order that is refused may match in the other one
    refused: dict[frozenset[int], str] = {}

    def compiled(name: str, rule: Rule) -> pattern.RewriteRule:
        def applies(_context: Any, **values: ir.Value) -> bool:
            place = frozenset(map(id, values.values()))
            reason = rule.refusal(**values)
            if reason is not None:
                refused[place] = reason
            else:
                refused.pop(place, None)
            return reason is None

        return pattern.RewriteRule(rule.pattern, rule.replacement, applies, name=name)

    applied = pattern.RewriteRuleSet([compiled(*each) for each in rules.items()], commute=True).apply_to_model(model)
    return PassResult.of([*[None] * applied, *refused.values()])
