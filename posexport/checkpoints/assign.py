"""The checkpoint decides: every tensor must be used and every parameter filled, or the error lists both sides."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from posexport.checkpoints.dropped import suggestion
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.mapping import Constant, Origin, Plan, Shape
from posexport.checkpoints.weights import Weights, first_few
from posexport.errors import PosexportError
from posexport.sources import lazy_parameters, memory_mapped

_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


@dataclass(frozen=True)
class Names:
    """The tensors of a file by the name that the mapping uses: with the family's prefix, and today's names."""

    stored: dict[str, str]
    prefix: str
    #: what all names of the file begin with, which is no part of the model's: ``_orig_mod.``, ``0.auto_model.``
    foreign: str = ""

    def shown(self, name: str) -> str:
        """A name as the file has it, or would have it."""
        return self.stored.get(name, self.foreign + name.removeprefix(self.prefix))

    def of(self, origin: Origin) -> list[str]:
        """The tensors of the file that a parameter of this origin may be made of, by their names there."""
        return [self.stored[name] for name in origin.names if name in self.stored]

    def remarks(self) -> list[str]:
        """The remark on a wrapper's prefix, if all names have one."""
        if not self.foreign:
            return []
        return [f"all tensors are called {self.foreign}..., as a wrapper saved them; the prefix is left out"]


def names_of(weights: Weights, family: Family) -> Names:
    """Recognise old names, a missing prefix and a wrapper's. PosexportError where two tensors then have one name."""
    prefix = f"{family.prefix}." if family.prefix else ""
    foreign = _foreign(
        [name for name in weights.shapes if "/" not in name], (*([prefix] if prefix else []), *family.roots)
    )
    prefixed = any(name.startswith(foreign + prefix) for name in weights.shapes)
    stored: dict[str, str] = {}
    for whole in weights.shapes:
        name = whole.removeprefix(foreign)
        today = name if prefixed or not name.startswith(family.roots) else prefix + name
        for old, new in _OLD_NAMES.items():
            if today.endswith(old):
                today = today.removesuffix(old) + new
        if today in stored:
            raise PosexportError(f"{weights.label} has {today} twice, as {stored[today]} and {whole}; keep one of them")
        stored[today] = whole
    return Names(stored, "" if prefixed else prefix, foreign)


def _foreign(names: Sequence[str], known: tuple[str, ...]) -> str:
    """The dotted prefix of all ``names`` before the beginnings ``known`` of a model's names; empty: none."""
    if not names or not known or any(name.startswith(known) for name in names):
        return ""
    parts = names[0].split(".")[:-1]
    prefixes = (".".join(parts[:count]) + "." for count in range(1, len(parts) + 1))
    shared = (prefix for prefix in prefixes if all(name.startswith(prefix) for name in names))
    return next((prefix for prefix in shared if any(n.removeprefix(prefix).startswith(known) for n in names)), "")


def check(plan: Plan, weights: Weights, names: Names, family: Family, *, task: str) -> list[str]:
    """Compares names and shapes: remarks on unused tensors that are harmless, PosexportError for all others."""
    missing, misshapen, used = _compared(plan, weights, names)
    for name, formula in plan.constants.items():
        if name in names.stored:
            used.add(name)
            _check_constant(name, formula, weights, names)
    unused = [
        name
        for name, stored in names.stored.items()
        if name not in used.union(plan.unread) and stored not in weights.needless
    ]
    needed = {name for origin in plan.origins.values() for name in origin.names}
    remarks, unknown = _unused(unused, family, {**family.beside, **plan.beside}, needed)
    if missing or unknown or misshapen:
        raise PosexportError(
            f"{weights.label}: the weights do not fit a {family.model_type} for {task}: "
            f"{_listed('tensors of the file are not used', [names.shown(name) for name in unknown])}, "
            f"{_listed('needed ones are not in the file', missing)}, {_listed('have another shape', misshapen)}; "
            f"check {', '.join(('model_type', *plan.decides))} and sizes in config.json, or choose another --task"
            f"{_leave_out(unknown, names, family) if not missing and not misshapen else ''}"
        )
    return remarks


def _leave_out(unknown: Sequence[str], names: Names, family: Family) -> str:
    """The end of the message where only heads are left over, which may be left out."""
    body = f"{family.prefix}." if family.prefix else family.roots
    if any(name.startswith(body) for name in unknown):
        return ""
    return f", or leave out a head that you do not need with {suggestion([names.stored[name] for name in unknown])}"


def _compared(plan: Plan, weights: Weights, names: Names) -> tuple[list[str], list[str], set[str]]:
    """What the parameters need and the file has not, what has another shape there, and what they use."""
    missing: list[str] = []
    misshapen: list[str] = []
    used: set[str] = set()
    shapes = {name: value.shape for name, value in plan.model.named_parameters(remove_duplicate=False)}
    for parameter, origin in plan.origins.items():
        for alternatives, shape, optional in _needed(origin, shapes[parameter]):
            present = [name for name in alternatives if name in names.stored]
            used.update(present)
            if alternatives and not present and not optional:
                missing.append(names.shown(alternatives[0]))
            misshapen += [
                f"{names.shown(name)} is {stored}, needed {list(shape)}"
                for name in present
                if (stored := weights.shapes[names.stored[name]]) != list(shape)
            ]
    return missing, misshapen, used


def _needed(origin: Origin, parameter: Shape) -> Iterator[tuple[tuple[str, ...], Shape, bool]]:
    """The tensors of a parameter of this shape: the names that each may have, its shape, whether it may be missing."""
    stored, *outputs = origin.shapes(parameter)
    yield origin.names, stored, origin.optional
    for transform, shape in zip(origin.transforms, outputs, strict=True):
        for alternatives, needed in transform.also_reads(shape).items():
            yield alternatives, needed, False


def _check_constant(name: str, formula: Constant, weights: Weights, names: Names) -> None:
    """PosexportError where a file's table is not the formula's, up to the rounding of its format (bfloat16's too)."""
    stored = names.stored[name]
    shape, needed = weights.shapes[stored], list(formula.values.shape)
    integers = not formula.values.is_floating_point()
    if shape != needed or not torch.allclose(
        weights.read(stored, integers=integers).float(), formula.values.float(), rtol=formula.rtol, atol=formula.atol
    ):
        what = f"is {shape}, needed {needed}" if shape != needed else "differs from the family's formula"
        raise PosexportError(
            f"{weights.label}: {names.shown(name)} {what}; such a table is computed here, not read: "
            f"check model_type and sizes in config.json"
        )


def _unused(
    left: list[str], family: Family, beside: Mapping[str, str | None], needed: Collection[str]
) -> tuple[list[str], list[str]]:
    """Remarks on the harmless ones, and the rest. This is the whole list of tensors that may be ignored, with reasons.

    A head is another task's only where this one needs no tensor of it.
    """
    prefix = f"{family.prefix}." if family.prefix else ""
    # name: reason, and whether the user should hear of it
    harmless: dict[str, str | None] = {
        f"{prefix}embeddings.position_ids": None,  # 0, 1, 2 ... which older versions stored
        f"{prefix}embeddings.token_type_ids": None,  # zeros, likewise
        f"{prefix}pooler.": "the pooler",
        # used by every checkpoint with absolute positions; with relative ones transformers 4.57.6 ignores it
        f"{prefix}embeddings.position_embeddings.weight": "the table of absolute positions beside relative ones",
    }
    harmless |= {prefix + start: reason for start, reason in beside.items()}
    heads = family.other_heads.items()
    harmless |= {start: what for start, what in heads if not any(name.startswith(start) for name in needed)}
    unknown: list[str] = []
    counts: dict[str, int] = {}
    for name in left:
        start = next(
            (start for start in harmless if name == start or (start[-1] == "." and name.startswith(start))), None
        )
        if start is None:
            unknown.append(name)
        elif (reason := harmless[start]) is not None:
            counts[reason] = counts.get(reason, 0) + 1
    return [f"not used: {reason} ({count} tensor{'s' * (count > 1)})" for reason, count in counts.items()], unknown


def fill(plan: Plan, weights: Weights, names: Names) -> list[str]:
    """Give the definition its weights, one tensor at a time, as float32. Remarks tell of other formats in the file.

    The weights of a large definition are memory-mapped from the checkpoint; those in 16 bits, or with transforms, are
    lazy (`posexport.sources.lazy_parameters`).
    """
    if buffers := [name for name, buffer in plan.model.named_buffers() if buffer.is_meta]:
        raise ValueError(f"a definition with buffers ({buffers[0]}) cannot be made without its constructor's work")
    filled: dict[int, nn.Parameter] = {}
    by_name = dict(plan.model.named_parameters(remove_duplicate=False))
    size = memory_mapped.size_of(plan.model.parameters())
    large = size > memory_mapped.SHARED
    origins = plan.origins.items()
    mapped = {name: _mapped(weights, names, origin, by_name[name].shape) for name, origin in origins if large}
    kept = size - memory_mapped.size_of(parameter for parameter in mapped.values() if parameter is not None)
    with memory_mapped.Scratch(kept if large else None) as scratch:
        for name, origin in origins:
            stored, shape, parameter = names.of(origin), by_name[name].shape, mapped.get(name)
            if parameter is None:
                parameter = scratch.keep(_value(weights, names, stored, origin, shape))
            for other in stored[1:]:
                if not torch.equal(lazy_parameters.values(parameter), _value(weights, names, [other], origin, shape)):
                    raise PosexportError(
                        f"{weights.label}: {stored[0]} and {other} are one weight here, and differ in the file; "
                        f"remove one, or if the model has both set tie_word_embeddings to false in config.json (of two "
                        f"biases transformers 5 alone reads both: transformers_version)"
                    )
            memory_mapped.release([parameter])
            filled[id(by_name[name])] = parameter
    for module in plan.model.modules():
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, leaf, filled[id(parameter)])
    return _formats(plan, weights, names)


def _mapped(weights: Weights, names: Names, origin: Origin, shape: Shape) -> nn.Parameter | None:
    """The parameter as pages of the file, or a lazy one; None where the file cannot be mapped."""
    stored = names.of(origin)
    pages = weights.as_pages(stored[0]) if stored else None
    if pages is None or pages.dtype.itemsize > memory_mapped.DTYPE.itemsize:  # float64 may not fit float32
        return None
    if pages.dtype == memory_mapped.DTYPE and not origin.transforms:
        return pages
    same = None if origin.transforms or pages.dtype == memory_mapped.DTYPE else pages
    return lazy_parameters.lazy(shape, partial(_value, weights, names, stored, origin, shape), same)


def _value(weights: Weights, names: Names, stored: list[str], origin: Origin, shape: Shape) -> Tensor:
    """The parameter of the first of the tensors ``stored``, or zeros where there is none."""
    if not stored:
        return torch.zeros(tuple(shape), device="cpu")

    def read(alternatives: tuple[str, ...]) -> Tensor:
        return _float32(weights, next(names.stored[name] for name in alternatives if name in names.stored))

    value = _float32(weights, stored[0])
    for transform, output in zip(origin.transforms, origin.shapes(shape)[1:], strict=True):
        value = transform.apply(value, output, read)
    return value.contiguous()


def _float32(weights: Weights, name: str) -> Tensor:
    pages = weights.as_pages(name) if weights.dtypes[name] in (torch.bfloat16, torch.float16) else None
    value = weights.read(name) if pages is None else pages.detach()
    narrow = value.to(torch.float32)
    memory_mapped.release([] if pages is None else [pages])
    if value.dtype == torch.float64 and not torch.isfinite(narrow).all():
        raise PosexportError(f"{weights.label}: {name} holds numbers that float32 cannot hold")
    return narrow


def _formats(plan: Plan, weights: Weights, names: Names) -> list[str]:
    """A remark for every format other than float32 of the tensors that were read."""
    read = {names.stored[name] for origin in plan.origins.values() for name in origin.names if name in names.stored}
    formats = {dtype for name in read if (dtype := weights.dtypes[name]) not in (None, torch.float32)}
    return [
        f"the weights are {str(dtype).removeprefix('torch.')} in the file and are used as float32"
        for dtype in sorted(formats, key=str)
    ]


def _listed(what: str, names: Sequence[str]) -> str:
    return f"{len(names)} {what}" + (f" ({first_few(names)})" if names else "")
