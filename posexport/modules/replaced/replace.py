"""`posexport.replace`: an encoding of posexport instead of a submodule of a user's module.

A submodule's calls at two lengths show its arguments and outputs (`posexport.modules.replaced.calls`); its replacement
has the same (`posexport.modules.replaced.stand_ins`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from posexport.base.options.check import did_you_mean
from posexport.encodings.build import lookup, settings
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.modules.copied import copied
from posexport.modules.live_module import module_source
from posexport.modules.replaced.calls import Call, Reads
from posexport.modules.replaced.parity import Reference, check
from posexport.modules.replaced.stand_ins import STAND_INS, StandIn, for_calls
from posexport.nn.named_encoding import encoding_of

#: an encoding, its name, or its name and settings
Choice = Encoding | str | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class _Submodule:
    """A submodule with all its names, and the encoding that replaces it."""

    names: list[str]
    part: nn.Module
    encoding: Choice

    @property
    def label(self) -> str:
        return f"{self.names[0]} ({type(self.part).__name__})"


def replace(
    module: nn.Module, encodings: Mapping[str, Choice], example_inputs: Any, *, must_agree: bool = True
) -> nn.Module:
    """A copy of ``module`` in which ``encodings`` replace the submodules of these names or patterns.

    Raises:
        PosexportError: a name without a submodule, a call that no encoding fits, or values that differ.
    """
    # the calls of the submodules, at two lengths
    submodules = _submodules(module, encodings)
    changed = copied(type(module).__name__, module, "the result must not change yours")
    reference = Reference(module_source(module, example_inputs), [submodule.names[0] for submodule in submodules])
    # the replacements, with the dtype and device of the replaced submodules
    stand_ins = {submodule.names[0]: _stand_in(submodule, reference) for submodule in submodules}
    for submodule in submodules:
        tensors = (*submodule.part.parameters(), *submodule.part.buffers())
        tensor = next((x for x in tensors if x.is_floating_point()), None)
        stand_in = stand_ins[submodule.names[0]].train(submodule.part.training)
        placed = stand_in if tensor is None else stand_in.to(device=tensor.device, dtype=tensor.dtype)
        for name in submodule.names:
            put(changed, name, placed)
    if must_agree:
        check(
            reference, {submodule.label: (submodule.names, stand_ins[submodule.names[0]]) for submodule in submodules}
        )
    return changed


def put(module: nn.Module, name: str, part: nn.Module) -> None:
    """Set the submodule of a dotted name."""
    parent, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(parent), leaf, part)


def _submodules(module: nn.Module, encodings: Mapping[str, Choice]) -> list[_Submodule]:
    named = {name: submodule for name, submodule in module.named_modules(remove_duplicate=False) if name}
    if not isinstance(encodings, Mapping) or not encodings:
        raise PosexportError(
            "replace needs a mapping from names of submodules to encodings, such as {'bias': 'alibi'}, got "
            f"{encodings!r:.60}"
        )
    by_id: dict[int, tuple[_Submodule, str]] = {}
    for pattern, choice in encodings.items():
        names = [name for name in named if _matches(name, str(pattern))]
        if not names:
            hint = did_you_mean(str(pattern), named, "names are those of named_modules()")
            raise PosexportError(f"{type(module).__name__} has no submodule {pattern!r}; {hint}")
        for name in names:
            submodule, by = by_id.setdefault(id(named[name]), (_Submodule([], named[name], choice), pattern))
            if by != pattern:
                raise PosexportError(f"the submodule {name} is meant by both {by!r} and {pattern!r}; leave one out")
            submodule.names.append(name)
    return [submodule for submodule, _ in by_id.values()]


def _matches(name: str, pattern: str) -> bool:
    """Whether a name matches, part by part: ``*`` matches no dot."""
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _stand_in(submodule: _Submodule, reference: Reference) -> StandIn:
    first, second = (calls[submodule.names[0]] for calls in reference.calls)
    if not first or not second:
        raise PosexportError(
            f"{submodule.label} is never called as a module in {reference.name}'s forward: name the submodule whose "
            "forward gives the bias, the rotation or the vectors"
        )
    kind, fit = _kind(submodule, first[0], second[0])
    original = reference.part(submodule.names[0])
    tables = _tables(original)
    encoding = _encoding(submodule, fit, tables)
    if reason := kind.refusal(encoding):
        raise PosexportError(f"{encoding.name} cannot stand in the place of {submodule.label}: {reason}")
    stand_in = kind(encoding, Reads.of(first[0], second[0]))
    stand_in.learn_from(original, first[0])
    return stand_in


def _kind(submodule: _Submodule, first: Call, second: Call) -> tuple[type[StandIn], Mapping[str, int]]:
    """The class of the replacement that fits the submodule's calls, and the sizes that they show."""
    choice = submodule.encoding[0] if isinstance(submodule.encoding, tuple) else submodule.encoding
    kind = lookup(choice).cls if isinstance(choice, str) else type(choice)
    if not issubclass(kind, Encoding):
        raise PosexportError(
            f"in the place of {submodule.label} must stand an encoding: an object, a name of posexport list encodings, "
            f"or a name and settings, ('t5', {{'max_distance': 64}}), got {choice!r:.60}"
        )
    fitting = for_calls(kind.hooks, first, second)
    if fitting is None:
        contracts = [stand_in.contract for stand_in in STAND_INS if [stand_in.hook] == list(kind.hooks)]
        if not contracts:
            raise PosexportError(
                f"{kind.name} acts through {' and '.join(kind.hooks) or 'nothing'}, which no submodule of its own "
                "does; put posexport.nn.Attention in the place of the attention"
            )
        raise PosexportError(
            f"{submodule.label} is called with {_shapes(first.arguments.values())} and returns "
            f"{_shapes(first.outputs)}; {kind.name} stands in the place of a submodule that is called as "
            f"{'; or '.join(contracts)}"
        )
    return fitting


def _shapes(values: Any) -> str:
    return ", ".join(str(list(x.shape)) if isinstance(x, Tensor) else repr(x)[:30] for x in values) or "nothing"


def _tables(original: nn.Module) -> list[Tensor]:
    """The parameters of a submodule, or its buffers where it has none, without axes of size 1."""
    tables: list[Tensor] = [*original.parameters()] or [*original.buffers()]
    return [x.detach().squeeze() for x in tables]


def _encoding(submodule: _Submodule, fit: Mapping[str, int], tables: Sequence[Tensor]) -> Encoding:
    """The encoding: for a name a new one with the submodule's weights, an object as it is."""
    if isinstance(submodule.encoding, Encoding):
        return encoding_of(submodule.encoding, None, fit)
    name, chosen = submodule.encoding if isinstance(submodule.encoding, tuple) else (submodule.encoding, {})
    if "max_positions" in settings(lookup(name)) and "max_positions" not in chosen:
        rows = [table.shape[0] for table in tables if table.ndim == 2]
        chosen = {**chosen, **({"max_positions": rows[0] - int(chosen.get("offset", 0))} if len(rows) == 1 else {})}
    # one that reads queries is refused for that, not for the head size that its calls do not show
    encoding = encoding_of(name, chosen, {"head_size": 1, **fit})
    with torch.no_grad():
        for parameter in encoding.parameters():
            fitting = [table for table in tables if table.shape == parameter.squeeze().shape]
            if len(fitting) == 1:
                parameter.copy_(fitting[0].reshape(parameter.shape))
    return encoding
