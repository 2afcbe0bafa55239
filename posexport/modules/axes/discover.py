"""Finds the axes of a module's inputs from its example alone: `Classify` resizes them, `named` names them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from posexport.base.spec import BATCH, SEQUENCE, Axis
from posexport.errors import PosexportError
from posexport.modules.axes.classified import Classified, Varying
from posexport.modules.axes.classify import SPARED, Classify
from posexport.modules.axes.example_calls import ExampleCalls, SpentError, TensorAxis, counts_rows, resized
from posexport.modules.axes.indexed import find_indexed
from posexport.modules.axes.names import MOST_CHANNELS, named
from posexport.modules.axes.sizes import STANDARD
from posexport.modules.axes.unread import fix_unread

#: the number of calls that are allowed, and for every axis where that is more; most modules need half
MOST, _PER_AXIS = 52, 6
#: the rank of values in rows, [batch, rows, channels]
_WITH_ROWS = 3
#: parts of names of inputs about the tokens of another input
_FOLLOWERS = ("mask", "type", "position", "segment")
#: the rank of a table, [batch, columns]
_OF_TABLES = 2
#: the rank of a batch of images
_OF_IMAGES = 4


@dataclass(frozen=True, kw_only=True)
class Discovered:
    """The result.

    Attributes:
        shapes: the axes of every input.
        groups: the axes of every name, and how they vary.
        rows: by input of ids that are indices of an axis, its name.
        tokens: how many tokens ids always have, where the module fixes that; None: no input has a fixed number.
        remarks: sentences for the user.
        notes: lines of the verbose log.
    """

    shapes: dict[str, list[Axis]]
    groups: dict[str, Varying] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)
    tokens: int | None = None
    remarks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def discover(
    argument: str,
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    declared: Mapping[str, Sequence[Axis]],
    fixed: Collection[TensorAxis] = (),
) -> Discovered:
    """Calls ``module``, which is in eval mode and float32, with its example in other sizes.

    ``declared``: the axes that the user named, by input; ``fixed``: others that keep the example's size. Where the
    module fails with its example, or the calls that are allowed do not suffice, the first two axes of every input are
    assumed to be batch and sequence.
    """
    # inputs that others depend on, and the user's names
    most = max(MOST, _PER_AXIS * sum(tensor.dim() for tensor in tensors.values()))
    calls = ExampleCalls.of(argument, module, tensors, most)
    masks = {name for name, tensor in tensors.items() if "mask" in name.lower() or counts_rows(name, tensor)}
    followers = {
        name
        for name, tensor in tensors.items()
        if not tensor.is_floating_point() and any(word in name.lower() for word in _FOLLOWERS)
    }
    by_label = _declared_axes(declared)
    # classify the axes, then name them
    try:
        calls.indexed = find_indexed(calls)
        known = _fixed_axes(declared) | {(name, number) for name, number in fixed if name not in declared}
        classified = Classify(calls, list(by_label.values()), followers).run(known)
        if classified is None:
            return Discovered(shapes=_conventional(tensors, declared))
        fix_unread(calls, classified, {place for group in by_label.values() for place in group})
        groups_declared = {label: classified.of(group[0]) for label, group in by_label.items()}
        for label, group in groups_declared.items():
            if group is None and label not in STANDARD:
                (name, number), *_ = by_label[label]
                raise _does_not_vary(argument, label, (name, number), classified)
        groups = named(
            tensors,
            classified,
            {label: group for label, group in groups_declared.items() if group is not None},
            lambda group: not _joined(group, calls.indexed) and separate(calls, classified, group, masks),
            # where calls are spent, the least size is not known
            lambda group: group.least <= group.step or calls.left <= SPARED,
        )
    except SpentError:
        remark = (
            f"how axes vary was not found in {most} calls of the module: the first two axes of every input are taken "
            "for batch and sequence; name them with axes="
        )
        return Discovered(shapes=_conventional(tensors, declared), remarks=[remark])
    # the axes of every input
    shapes = {
        name: list(declared[name]) if name in declared else _shape(name, tensors, groups, classified)
        for name in tensors
    }
    # ids of an axis of one size have that bound at all others too
    rows = {name: axis for name, (at, *_) in calls.indexed.items() if isinstance(axis := shapes[at[0]][at[1]], str)}
    fixed_tokens = _fixed_tokens(tensors, shapes, declared, classified)
    return Discovered(
        shapes=shapes,
        groups=dict(groups),
        rows=rows,
        tokens=next(iter(fixed_tokens.values()), None),
        remarks=[
            *_remarks(tensors, shapes, classified),
            *(f"ids of {name} are below the size of {axis}, whose elements they index" for name, axis in rows.items()),
            *_fixed_images(tensors, declared, classified),
            *_fixed_rows(tensors, shapes, declared, classified),
            *_fixed_of_few(tensors, classified),
            *(_remark_on_tokens(name, tokens, classified) for name, tokens in fixed_tokens.items()),
        ],
        notes=[f"axes found in {len(calls.failures)} calls: {_described(shapes, dict(groups))}"],
    )


def _declared_axes(declared: Mapping[str, Sequence[Axis]]) -> dict[str, tuple[TensorAxis, ...]]:
    by_label: dict[str, tuple[TensorAxis, ...]] = {}
    for name, axes in declared.items():
        for number, axis in enumerate(axes):
            if isinstance(axis, str):
                by_label[axis] = (*by_label.get(axis, ()), (name, number))
    return by_label


def _fixed_axes(declared: Mapping[str, Sequence[Axis]]) -> set[TensorAxis]:
    return {(name, n) for name, axes in declared.items() for n, axis in enumerate(axes) if isinstance(axis, int)}


def _conventional(tensors: Mapping[str, Tensor], declared: Mapping[str, Sequence[Axis]]) -> dict[str, list[Axis]]:
    """The axes of every input by convention: batch, sequence and fixed sizes."""
    standard: list[Axis] = [BATCH, SEQUENCE]
    return {
        name: list(declared.get(name, [*standard[: tensor.dim()], *tensor.shape[2:]]))
        for name, tensor in tensors.items()
    }


def _does_not_vary(argument: str, label: str, tensor_axis: TensorAxis, classified: Classified) -> PosexportError:
    name, number = tensor_axis
    return PosexportError(
        f"{argument}: axis {label} (axis {number} of {name}) does not vary: {classified.fixed[tensor_axis]}; compute "
        "what depends on it from x.shape, or give its size as a number with axes="
    )


def _shape(
    name: str, tensors: Mapping[str, Tensor], groups: Sequence[tuple[str, Varying]], classified: Classified
) -> list[Axis]:
    """The axes of an input. The second axis of ids that the module does not read at all is one of tokens."""
    tensor, names = tensors[name], {tensor_axis: label for label, group in groups for tensor_axis in group.members}
    axes: list[Axis] = [names.get((name, axis), size) for axis, size in enumerate(tensor.shape)]
    is_fixed = (name, 1) in classified.columns or (name, 1) in classified.fixed
    if _holds_ids(tensor) and isinstance(axes[1], int) and SEQUENCE not in axes and not is_fixed:
        axes[1] = SEQUENCE
    return axes


def _holds_ids(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dim() == 2


def _remarks(tensors: Mapping[str, Tensor], shapes: Mapping[str, Sequence[Axis]], classified: Classified) -> list[str]:
    """A remark where no input has a batch axis: which first axis does not vary, and why."""
    if any("batch" in axis for axes in shapes.values() for axis in axes if isinstance(axis, str)):
        return []
    fixed = [(name, classified.fixed[name, 0]) for name in tensors if (name, 0) in classified.fixed]
    return [
        f"no input has a batch axis that varies: axis 0 of {name} stays {tensors[name].shape[0]}, since {reason}"
        for name, reason in fixed[:1]
    ]


def _fixed_images(
    tensors: Mapping[str, Tensor], declared: Mapping[str, Sequence[Axis]], classified: Classified
) -> list[str]:
    """Remarks on images [..., channels, height, width] of a size that the module fixes and the user did not name."""
    remarks = []
    for name, tensor in tensors.items():
        if tensor.dim() < _OF_IMAGES or not tensor.is_floating_point() or name in declared:
            continue
        sides = _sides(name, tensor, classified)
        reasons = [classified.fixed[side] for side in sides if side in classified.fixed]
        if reasons:
            size = "x".join(str(tensor.shape[axis]) for _, axis in sides)
            remarks.append(f"the image size of {name} stays {size}, since at another size {reasons[0]}")
    return remarks


def _fixed_rows(
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, Sequence[Axis]],
    declared: Mapping[str, Sequence[Axis]],
    classified: Classified,
) -> list[str]:
    """Remarks on values [batch, rows, channels] with a number of rows that the module fixes, as of a square."""
    return [
        f"axis 1 of {name} stays {tensor.shape[1]}, since at another size {classified.fixed[name, 1]}"
        for name, tensor in tensors.items()
        if tensor.dim() == _WITH_ROWS
        and tensor.is_floating_point()
        and name not in declared
        and (name, 1) in classified.fixed
        and all(isinstance(axis, int) for axis in shapes[name][1:])
    ]


def _fixed_of_few(tensors: Mapping[str, Tensor], classified: Classified) -> list[str]:
    """Remarks on axes that the module takes in a few other sizes, but for rows and images, which have their own."""
    return [
        f"axis {number} of {name} has the example's size in the bundle, {tensors[name].shape[number]}: at others "
        f"{classified.fixed[name, number]}"
        for name, number in classified.of_few
        if tensors[name].dim() < _OF_IMAGES and (tensors[name].dim(), number) != (_WITH_ROWS, 1)
    ]


def _fixed_tokens(
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, Sequence[Axis]],
    declared: Mapping[str, Sequence[Axis]],
    classified: Classified,
) -> dict[str, int]:
    """The inputs of ids [batch, tokens] whose number of tokens the module fixes and the user did not name."""
    if any(SEQUENCE in axes for axes in shapes.values()):
        return {}
    return {
        name: tensor.shape[1]
        for name, tensor in tensors.items()
        if _holds_ids(tensor)
        and (name, 1) in classified.fixed
        and (name, 1) not in classified.columns
        and name not in declared
    }


def _remark_on_tokens(name: str, tokens: int, classified: Classified) -> str:
    return (
        f"{name} always has {tokens} tokens, since at another length {classified.fixed[name, 1]}; for other lengths, "
        "compute what depends on it from x.shape"
    )


def _described(shapes: Mapping[str, Sequence[Axis]], groups: Mapping[str, Varying]) -> str:
    inputs = ", ".join(f"{name} [{', '.join(map(str, axes))}]" for name, axes in shapes.items())
    least = [f"{label} from {group.least}" for label, group in groups.items() if group.least > 1]
    steps = [f"{label} in steps of {group.step}" for label, group in groups.items() if group.step > 1]
    return "; ".join([inputs, *least, *steps])


def _sides(name: str, tensor: Tensor, classified: Classified) -> list[TensorAxis]:
    """The height and width of images, before or behind the channels; with the channels where sizes do not tell."""
    places = [(name, tensor.dim() - number) for number in (3, 2, 1)]
    first, *_, last = tensor.shape[-3:]
    if not set(places[:2]) & set(classified.fixed) or last <= MOST_CHANNELS < first:
        return places[:2]
    return places if min(first, last) > MOST_CHANNELS and set(places) <= set(classified.fixed) else places[1:]


def _joined(group: Varying, indexed: Mapping[str, Sequence[TensorAxis]]) -> bool:
    """Whether rows of a group are joined by ids that index it, or are such ids alone: edges, and their nodes."""
    places = {place for axes in indexed.values() for place in axes}
    return bool(places & {*group.members}) or {name for name, _ in group.members} <= indexed.keys()


#: the difference by rounding that is allowed, relative to the largest element
_ROUNDING = 1e-4


def separate(calls: ExampleCalls, classified: Classified, group: Varying, masks: set[str]) -> bool:
    """Whether rows along ``group`` are independent: other values in the first one leave the outputs of the others.

    The first is changed, not the last: causal attention does not look ahead. A number for the batch, as a loss, tells
    nothing.
    """
    tensors = {name: resized(tensor, classified.base[name]) for name, tensor in calls.tensors.items()}
    changed = {name: _changed(tensor, name, group) if name not in masks else tensor for name, tensor in tensors.items()}
    outputs = calls.run(changed)
    return outputs is not None and all(
        _same_rest(before, outputs, name, group) for name, before in classified.outputs.items() if before.dim()
    )


def _changed(tensor: Tensor, name: str, group: Varying) -> Tensor:
    for axis in (axis for other, axis in group.members if other == name):
        first = tensor.select(axis, 0)
        if tensor.is_floating_point():
            new = torch.randn(first.shape, generator=torch.Generator().manual_seed(0)).to(tensor.dtype)
            if tensor.dim() == _OF_TABLES:  # columns of whole numbers may be ids
                is_id = (tensor == tensor.floor()).all(axis) & tensor.any(axis)
                new = torch.where(is_id, tensor.select(axis, -1), new)
        else:
            new = ~first if tensor.dtype == torch.bool else tensor.max() - first
        tensor = tensor.clone()
        tensor.select(axis, 0).copy_(new)
    return tensor


def _same_rest(before: Tensor, outputs: Mapping[str, Tensor], name: str, group: Varying) -> bool:
    after = outputs.get(name)
    if after is None or after.shape != before.shape:
        return False
    wide = torch.promote_types(before.dtype, torch.float64)
    limit = _ROUNDING * float(before.to(wide).abs().max())
    axes = [axis for output, axis in group.outputs if output == name]
    rest = [(t.narrow(axes[0], 1, t.shape[axes[0]] - 1) if axes else t).to(wide) for t in (before, after)]
    return bool((rest[0] - rest[1]).abs().max() <= limit) if rest[0].numel() else True
