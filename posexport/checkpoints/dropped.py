"""``--drop-weights``: tensors of a checkpoint that are left out as if the file did not have them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from posexport.checkpoints.weights import Weights, first_few
from posexport.errors import PosexportError

#: patterns that a message suggests at most
_MOST = 4


def matches(weights: Weights, patterns: Sequence[str]) -> dict[str, list[str]]:
    """The tensors that each pattern matches. PosexportError for a pattern that matches none."""
    matched = {pattern: [name for name in weights.shapes if fnmatchcase(name, pattern)] for pattern in patterns}
    if unmatched := next((pattern for pattern, names in matched.items() if not names), None):
        raise PosexportError(
            f"--drop-weights {unmatched} matches no tensor of {weights.label}, which has {first_few([*weights.shapes])}"
        )
    return matched


def without(weights: Weights, names: Collection[str]) -> Weights:
    remaining = [name for name in weights.shapes if name not in names]
    return replace(
        weights,
        readers={name: weights.readers[name] for name in remaining},
        shapes={name: weights.shapes[name] for name in remaining},
        dtypes={name: weights.dtypes[name] for name in remaining},
    )


def remarks(matched: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence with all tensors that a pattern left out, for each pattern."""
    return [f"left out by --drop-weights {pattern}: {', '.join(names)}" for pattern, names in matched.items()]


def suggestion(names: Sequence[str]) -> str:
    """The options that leave out the modules of the tensors ``names``."""
    modules = dict.fromkeys(name.rpartition(".")[0] for name in names)
    patterns = [f"{module}.*" for module in modules if module] + [name for name in names if "." not in name]
    more = " ..." if len(patterns) > _MOST else ""
    return " ".join(f"--drop-weights '{pattern}'" for pattern in patterns[:_MOST]) + more
