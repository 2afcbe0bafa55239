"""An encoding of ours in the place of a submodule of a user's module.

What a submodule is given and returns is seen in its calls at two lengths (`posexport.sources.replaced.calls`), and is
what its stand-in is given and returns (`posexport.sources.replaced.stand_ins`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from posexport.encodings.build import lookup, settings
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.nn.named_encoding import encoding_of
from posexport.options.suggest import did_you_mean
from posexport.sources.live_module import module_source
from posexport.sources.replaced.calls import Call, Reads
from posexport.sources.replaced.parity import Reference, check
from posexport.sources.replaced.stand_ins import STAND_INS, StandIn, for_calls
from posexport.sources.user_module import copied

#: an encoding of ours, its name, or its name and settings
Wanted = Encoding | str | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class _Place:
    """A submodule, all names that it has, and what is to stand there."""

    names: list[str]
    part: nn.Module
    wanted: Wanted

    @property
    def label(self) -> str:
        return f"{self.names[0]} ({type(self.part).__name__})"


def replace(
    module: nn.Module, encodings: Mapping[str, Wanted], example_inputs: Any, *, must_agree: bool = True
) -> nn.Module:
    """A copy of ``module`` with ``encodings`` in the place of the submodules that the names or patterns tell.

    Raises:
        PosexportError: a name without a submodule, a call that no encoding answers, or values that differ.
    """
    places = _places(module, encodings)
    changed = copied(type(module).__name__, module, "the result must not change yours")
    reference = Reference(module_source(module, example_inputs), [place.names[0] for place in places])
    stand_ins = {place.names[0]: _stand_in(place, reference) for place in places}
    for place in places:
        tensor = next((x for x in (*place.part.parameters(), *place.part.buffers()) if x.is_floating_point()), None)
        stand_in = stand_ins[place.names[0]].train(place.part.training)
        own = stand_in if tensor is None else stand_in.to(device=tensor.device, dtype=tensor.dtype)
        for name in place.names:
            put(changed, name, own)
    if must_agree:
        check(reference, {place.label: (place.names, stand_ins[place.names[0]]) for place in places})
    return changed


def put(module: nn.Module, name: str, part: nn.Module) -> None:
    """Set the submodule of a dotted name."""
    parent, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(parent), leaf, part)


def _places(module: nn.Module, encodings: Mapping[str, Wanted]) -> list[_Place]:
    named = {name: part for name, part in module.named_modules(remove_duplicate=False) if name}
    if not isinstance(encodings, Mapping) or not encodings:
        raise PosexportError(
            "replace needs a mapping from names of submodules to encodings, such as {'bias': 'alibi'}, got "
            f"{encodings!r:.60}"
        )
    found: dict[int, tuple[_Place, str]] = {}
    for pattern, wanted in encodings.items():
        names = [name for name in named if _matches(name, str(pattern))]
        if not names:
            hint = did_you_mean(str(pattern), named, "names are those of named_modules()")
            raise PosexportError(f"{type(module).__name__} has no submodule {pattern!r}; {hint}")
        for name in names:
            place, by = found.setdefault(id(named[name]), (_Place([], named[name], wanted), pattern))
            if by != pattern:
                raise PosexportError(f"the submodule {name} is meant by both {by!r} and {pattern!r}; leave one out")
            place.names.append(name)
    return [place for place, _ in found.values()]


def _matches(name: str, pattern: str) -> bool:
    """Part by part, so that ``*`` stands for no dot."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _stand_in(place: _Place, reference: Reference) -> StandIn:
    first, second = (calls[place.names[0]] for calls in reference.calls)
    if not first or not second:
        raise PosexportError(
            f"{place.label} is never called as a module in {reference.name}'s forward: name the submodule whose "
            "forward gives the bias, the rotation or the vectors"
        )
    kind, fit = _kind(place, first[0], second[0])
    part = reference.part(place.names[0])
    tables = _tables(part)
    encoding = _encoding(place, fit, tables)
    if reason := kind.refusal(encoding):
        raise PosexportError(f"{encoding.name} cannot stand in the place of {place.label}: {reason}")
    stand_in = kind(encoding, Reads.of(first[0], second[0]))
    stand_in.settle(part, first[0])
    return stand_in


def _kind(place: _Place, first: Call, second: Call) -> tuple[type[StandIn], Mapping[str, int]]:
    """What answers the submodule's calls."""
    wanted = place.wanted[0] if isinstance(place.wanted, tuple) else place.wanted
    kind = lookup(wanted).cls if isinstance(wanted, str) else type(wanted)
    if not issubclass(kind, Encoding):
        raise PosexportError(
            f"in the place of {place.label} must stand an encoding: an object, a name of posexport list encodings, or "
            f"a name and settings, ('t5', {{'max_distance': 64}}), got {wanted!r:.60}"
        )
    found = for_calls(kind.hooks, first, second)
    if found is None:
        contracts = [each.contract for each in STAND_INS if [each.hook] == list(kind.hooks)]
        if not contracts:
            raise PosexportError(
                f"{kind.name} acts through {' and '.join(kind.hooks) or 'nothing'}, which no submodule of its own "
                "does; put posexport.nn.Attention in the place of the attention"
            )
        raise PosexportError(
            f"{place.label} is called with {_shapes(first.arguments.values())} and returns {_shapes(first.outputs)}; "
            f"{kind.name} stands in the place of a submodule that is called as {'; or '.join(contracts)}"
        )
    return found


def _shapes(values: Any) -> str:
    return ", ".join(str(list(x.shape)) if isinstance(x, Tensor) else repr(x)[:30] for x in values) or "nothing"


def _tables(part: nn.Module) -> list[Tensor]:
    """What a submodule keeps, without axes of 1: parameters, and where there are none buffers."""
    kept: list[Tensor] = [*part.parameters()] or [*part.buffers()]
    return [x.detach().squeeze() for x in kept]


def _encoding(place: _Place, fit: Mapping[str, int], tables: Sequence[Tensor]) -> Encoding:
    """A fresh encoding with the submodule's weights for a name; an object as it is."""
    if isinstance(place.wanted, Encoding):
        return encoding_of(place.wanted, None, fit)
    name, own = place.wanted if isinstance(place.wanted, tuple) else (place.wanted, {})
    if "max_positions" in settings(lookup(name)) and "max_positions" not in own:
        rows = [table.shape[0] for table in tables if table.ndim == 2]
        own = {**own, **({"max_positions": rows[0] - int(own.get("offset", 0))} if len(rows) == 1 else {})}
    # one that reads queries is refused for that, not for the head size that its calls do not show
    encoding = encoding_of(name, own, {"head_size": 1, **fit})
    with torch.no_grad():
        for parameter in encoding.parameters():
            fitting = [table for table in tables if table.shape == parameter.squeeze().shape]
            if len(fitting) == 1:
                parameter.copy_(fitting[0].reshape(parameter.shape))
    return encoding
