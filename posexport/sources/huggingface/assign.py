"""The checkpoint decides: every tensor must be used and every parameter filled, or the error lists both sides."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posexport.errors import PosexportError
from posexport.sources import mapped
from posexport.sources.huggingface.families.family import AnyFamily
from posexport.sources.huggingface.plan import Constant, Origin, Plan
from posexport.sources.huggingface.weights import Weights

_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


@dataclass(frozen=True)
class Names:
    """The tensors of a file by the name that the mapping uses: with the family's prefix, and today's names."""

    stored: dict[str, str]
    prefix: str

    def shown(self, name: str) -> str:
        """A name as the file has it, or would have it."""
        return self.stored.get(name, name.removeprefix(self.prefix))


def names_of(weights: Weights, family: AnyFamily) -> Names:
    """Recognise old names and a missing prefix. Raises PosexportError when two tensors have the same name then."""
    prefix = f"{family.prefix}." if family.prefix else ""
    prefixed = any(name.startswith(prefix) for name in weights.shapes)
    stored: dict[str, str] = {}
    for name in weights.shapes:
        today = name if prefixed or not name.startswith(family.roots) else prefix + name
        for old, new in _OLD_NAMES.items():
            if today.endswith(old):
                today = today.removesuffix(old) + new
        if today in stored:
            raise PosexportError(f"{weights.label} has {today} twice, as {stored[today]} and {name}; keep one of them")
        stored[today] = name
    return Names(stored, "" if prefixed else prefix)


def check(plan: Plan, weights: Weights, names: Names, family: AnyFamily, *, task: str) -> list[str]:
    """Compare names and shapes: remarks on what is unused and harmless; PosexportError for anything else."""
    shapes = {name: list(parameter.shape) for name, parameter in plan.model.named_parameters(remove_duplicate=False)}
    used: set[str] = set()
    missing: list[str] = []
    misshapen: list[str] = []
    for parameter, origin in plan.origins.items():
        present = [name for name in origin.names if name in names.stored]
        wanted = [(name, origin.stored_shape(shapes[parameter])) for name in present]
        if origin.names and not present and not origin.optional:
            missing.append(names.shown(origin.names[0]))
        if origin.row is not None:
            if origin.row[0] in names.stored:
                wanted.append(origin.row)
            else:
                missing.append(names.shown(origin.row[0]))
        if origin.gain:
            *others, last = shapes[parameter]
            present = [name for name in origin.gain if name in names.stored]
            wanted += [(name, [1] * len(others) + [last]) for name in present]
            missing += [] if present else [names.shown(origin.gain[0])]
        for name, shape in wanted:
            used.add(name)
            if (got := weights.shapes[names.stored[name]]) != shape:
                misshapen.append(f"{names.shown(name)} is {got}, needed {shape}")
    for name, formula in plan.constants.items():
        if name in names.stored:
            used.add(name)
            _check_constant(name, formula, weights, names)
    used.update(plan.unread)
    left = [name for name in names.stored if name not in used]
    needed = {name for origin in plan.origins.values() for name in origin.names}
    remarks, unused = _unused(left, family, {**family.beside, **plan.beside}, needed)
    if missing or unused or misshapen:
        raise PosexportError(
            f"{weights.label}: the weights do not fit a {family.model_type} for {task}: "
            f"{_listed('tensors of the file are not used', [names.shown(name) for name in unused])}, "
            f"{_listed('needed ones are not in the file', missing)}, {_listed('have another shape', misshapen)}; "
            f"check {', '.join(('model_type', *plan.decides))} and sizes in config.json, or choose another --task"
        )
    return remarks


def _check_constant(name: str, formula: Constant, weights: Weights, names: Names) -> None:
    """What a file holds of a formula's numbers is theirs, up to the rounding of the file's format (bfloat16's too)."""
    stored = names.stored[name]
    got, wanted = weights.shapes[stored], list(formula.values.shape)
    integers = not formula.values.is_floating_point()
    if got != wanted or not torch.allclose(
        weights.read(stored, integers=integers).float(), formula.values.float(), rtol=formula.rtol, atol=formula.atol
    ):
        what = f"is {got}, needed {wanted}" if got != wanted else "differs from the family's formula"
        raise PosexportError(
            f"{weights.label}: {names.shown(name)} {what}; such a table is computed here, not read: "
            f"check model_type and sizes in config.json"
        )


def _unused(
    left: list[str], family: AnyFamily, beside: Mapping[str, str | None], needed: Collection[str]
) -> tuple[list[str], list[str]]:
    """Remarks on the harmless ones, and the rest. This is the whole list of what may be ignored, with the reasons.

    A head is another task's only where this one needs no tensor of it.
    """
    prefix = f"{family.prefix}." if family.prefix else ""
    # name: reason, and whether the user should hear of it
    harmless: dict[str, str | None] = {
        f"{prefix}embeddings.position_ids": None,  # 0, 1, 2 ... which older versions stored
        f"{prefix}embeddings.token_type_ids": None,  # zeros, likewise
        f"{prefix}pooler.": "the pooler",
        # always used by an absolute checkpoint, and in 4.57.6 by no family beside relative positions
        f"{prefix}embeddings.position_embeddings.weight": "the table of absolute positions beside relative ones",
    }
    harmless |= {prefix + start: reason for start, reason in beside.items()}
    heads = family.other_heads.items()
    harmless |= {start: what for start, what in heads if not any(name.startswith(start) for name in needed)}
    rest: list[str] = []
    counts: dict[str, int] = {}
    for name in left:
        start = next(
            (start for start in harmless if name == start or (start[-1] == "." and name.startswith(start))), None
        )
        if start is None:
            rest.append(name)
        elif (reason := harmless[start]) is not None:
            counts[reason] = counts.get(reason, 0) + 1
    return [f"not used: {reason} ({count} tensor{'s' * (count > 1)})" for reason, count in counts.items()], rest


def fill(plan: Plan, weights: Weights, names: Names) -> list[str]:
    """Give the definition its weights, one tensor at a time, as float32. Remarks tell of other formats in the file.

    Those of a large definition are mapped: from the checkpoint, or, where they are not in it as they are needed, from a
    temporary file.
    """
    if buffers := [name for name, buffer in plan.model.named_buffers() if buffer.is_meta]:
        raise ValueError(f"a definition with buffers ({buffers[0]}) cannot be made without its constructor's work")
    filled: dict[int, nn.Parameter] = {}
    by_name = dict(plan.model.named_parameters(remove_duplicate=False))
    size = mapped.size_of(plan.model.parameters())
    large = size > mapped.LARGE
    formats: set[torch.dtype] = set()
    # the exported weights may go to the same disk
    with mapped.Scratch(room=3 * size if large else None) as scratch:
        for name, origin in plan.origins.items():
            stored = [names.stored[known] for known in origin.names if known in names.stored]
            formats |= {dtype for known in stored if (dtype := weights.dtypes[known]) is not None}
            shape = by_name[name].shape
            parameter = weights.as_pages(stored[0]) if large and stored and _as_stored(origin) else None
            value: Tensor
            if parameter is not None:
                value = parameter
            elif stored:
                value = _value(weights, stored[0], origin, shape)
            else:
                value = torch.zeros(shape, device="cpu")
            for other in stored[1:]:
                if not torch.equal(value, _value(weights, other, origin, shape)):
                    raise PosexportError(
                        f"{weights.label}: {stored[0]} and {other} are one weight here, and differ in the file; "
                        f"remove one, or if the model has both set tie_word_embeddings to false in config.json (of two "
                        f"biases transformers 5 alone reads both: transformers_version)"
                    )
            if parameter is None:
                _apply(value, origin, weights, names)
                parameter = scratch.keep(value)
            mapped.release([parameter])
            filled[id(by_name[name])] = parameter
    for module in plan.model.modules():
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, leaf, filled[id(parameter)])
    return [
        f"the weights are {str(dtype).removeprefix('torch.')} in the file and are used as float32"
        for dtype in sorted(formats - {torch.float32}, key=str)
    ]


def _as_stored(origin: Origin) -> bool:
    """Whether a parameter is a tensor of the file, number for number."""
    reworked = origin.factor != 1.0 or origin.row or origin.part or origin.shape or origin.transposed or origin.gain
    return not reworked


def _float32(weights: Weights, name: str) -> Tensor:
    value = weights.read(name)
    made = value.to(torch.float32)
    if value.dtype == torch.float64 and not torch.isfinite(made).all():
        raise PosexportError(f"{weights.label}: {name} holds numbers that float32 cannot hold")
    return made


def _value(weights: Weights, name: str, origin: Origin, shape: torch.Size) -> Tensor:
    value = _float32(weights, name)
    if origin.transposed:
        value = value.flatten(1).mT
    if origin.part is not None:
        part, heads = origin.part
        parts: Tensor = value.unflatten(0, (heads, origin.parts, -1))  # type: ignore[no-untyped-call]
        value = parts[:, part : part + origin.width].flatten(0, 2)
    return value.reshape(shape).contiguous()


def _apply(value: Tensor, origin: Origin, weights: Weights, names: Names) -> None:
    if origin.factor != 1.0:
        value.mul_(origin.factor)
    if origin.row is not None:
        value.add_(_float32(weights, names.stored[origin.row[0]])[0])
    if origin.gain:
        gain = next(names.stored[name] for name in origin.gain if name in names.stored)
        wide = value.double()
        norm = wide.flatten(0, -2).norm(dim=0)
        value.copy_(wide * (_float32(weights, gain).double() / norm))


def _listed(what: str, found: Iterable[str], most: int = 5) -> str:
    items = list(found)
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{len(items)} {what}" + (f" ({', '.join(items[:most])}{more})" if items else "")
