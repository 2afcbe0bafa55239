"""What a rewrite must say about itself."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import onnx_ir as ir

from posexport.targets.target import Target


class Rewrite(Protocol):
    """One rewrite. ``name`` is what a report of it and `run.apply` call it."""

    name: str

    def refusal(self, target: Target) -> str | None:
        """Why a graph for ``target`` cannot have it; None where it can."""
        ...

    def beaten(self, target: Target) -> str | None:
        """Why it can be had and is left out nevertheless, such as that it is slower; None where it is worth having."""
        ...

    def apply(self, model: ir.Model, target: Target) -> int:
        """Rewrite ``model`` in place; how many places."""
        ...


def by_rules(
    patterns: Mapping[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., bool]]], model: ir.Model
) -> int:
    """Apply rules of onnxscript's rewriter: name -> (pattern, replacement, condition on the pattern's variables)."""
    from onnxscript.rewriter import pattern

    rules = []
    for name, (wanted, made, condition) in patterns.items():

        def applies(_context: Any, condition: Callable[..., bool] = condition, **found: Any) -> bool:
            return condition(**found)

        rules.append(pattern.RewriteRule(wanted, made, applies, name=name))
    return int(pattern.RewriteRuleSet(rules, commute=True).apply_to_model(model))
