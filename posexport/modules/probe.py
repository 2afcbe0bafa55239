"""What a user's module takes and gives, found by running it before anything is exported.

Everything that would make the export or the proof fail later is looked for here, where it takes a moment, and named in
one sentence. The module is run as a copy, so that what calls leave behind in it does not get into the graph.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
import torch
from torch import Tensor, nn

from posexport.errors import PosexportError
from posexport.modules.axes import ends
from posexport.modules.axes import sizes as axis_ranges
from posexport.modules.axes.classify import Varying
from posexport.modules.axes.limits import two_sizes, with_ranges
from posexport.modules.axes.outputs import output_axes
from posexport.modules.axes.tokens import elements_per_token
from posexport.modules.length_search import Found
from posexport.modules.trial import SEARCHED, Sizes, Trial
from posexport.modules.value_reads import ValueReads
from posexport.sources.example import axis_sizes, example
from posexport.spec import (
    ENCODER_SEQUENCE,
    SEQUENCE,
    InputSpec,
    LengthContract,
    Limits,
    OutputSpec,
    ProofPlan,
)
from posexport.system.user_code import is_external, line_of_error, raised
from posexport.torch_fixes.default_dtype import computing_in
from posexport.torch_fixes.module_precision import in_precision

_NAMES = {SEQUENCE: "inputs", ENCODER_SEQUENCE: "encoder inputs"}
#: padded tokens of a row, for the module that is asked whether its shapes depend on the mask
_PADDED = 2
#: what outputs may be: numbers in the precision of the model, and what is right or wrong
_COMPARED = (torch.float32, torch.int64, torch.int32, torch.bool)


@dataclass(frozen=True, kw_only=True)
class Probed:
    """``further``: lengths beyond the default grid, cheap enough to be proven too, where no limit was found."""

    outputs: list[OutputSpec]
    limits: Limits
    further: list[int]
    remarks: list[str] = field(default_factory=list)


def probe(
    argument: str,
    module: nn.Module,
    inputs: list[InputSpec],
    tensors: Mapping[str, Tensor],
    limits: LengthContract,
    groups: Mapping[str, Varying],
) -> Probed:
    """Run ``module`` at several sizes; ``tensors`` are the user's own example, ``limits`` what its encodings say.

    ``groups``: what was found of its axes.

    Raises:
        PosexportError: the module fails, or gives what no graph or no proof can give.
    """
    trial = Trial(argument, module, inputs)
    ranges = axis_ranges.others(list(axis_sizes(inputs)), groups)
    base = _base(trial, tensors, limits, groups)
    # a table that is made at the first call is made in the graph as well
    trial.watched = not trial.grown(base)
    steps = {axis: group.step for axis, group in groups.items()}
    searched = {
        axis: ends.of_tokens(trial, base, axis, limits, steps.get(axis, 1)) for axis in SEARCHED if axis in base
    }
    remarks = [
        f"{_NAMES[axis]} of at most {found.limit} tokens are accepted, longer ones are refused: {found.reason}"
        for axis, found in searched.items()
        if found.limit is not None and (axis not in limits.limited_axes or found.limit != limits.max_length)
    ]
    limits, traced = _limited(limits, searched, base, argument)
    per_token = elements_per_token(trial.module, trial.run, base, ranges)
    largest = {axis: ends.of_another(trial, base, axis, each, per_token) for axis, each in ranges.items()}
    ranges = {axis: replace(each, most=largest[axis].limit) for axis, each in ranges.items()}
    remarks += [
        f"{axis} of at most {found.limit} is accepted, more is refused: {found.reason}"
        for axis, found in largest.items()
        if found.limit is not None
    ]
    limits = with_ranges(limits, groups, ranges)
    first, second = two_sizes(base, limits, ranges)
    outputs = output_axes(argument, trial.run, first, second, limits.size_steps)
    for spec, tensor in zip(outputs, trial.run(first).values(), strict=True):
        _sound(trial, spec.name, tensor)
    _repeats(trial, first)
    _values_change_no_shape(trial, first, outputs)
    _in_float64(trial, first)
    sequence = searched.get(SEQUENCE)
    return Probed(
        outputs=outputs,
        limits=Limits.of(
            limits,
            ProofPlan(
                proof_sizes=axis_ranges.proof_sizes(ranges),
                elements_per_token=per_token,
                trace_sizes={axis: size for axis, size in traced.items() if axis_sizes(inputs)[axis] != size},
            ),
        ),
        further=[] if sequence is None or sequence.limit is not None else sequence.cheap,
        remarks=remarks,
    )


def _base(trial: Trial, tensors: Mapping[str, Tensor], limits: LengthContract, groups: Mapping[str, Varying]) -> Sizes:
    """Sizes that the module takes: those to trace at, or where these are too long, the example's."""
    usual = axis_sizes(trial.inputs)
    chosen = axis_ranges.trace_sizes(axis_ranges.others(list(usual), groups))
    first = {**usual, **chosen, **axis_ranges.standard_sizes(groups, usual)}
    if limits.max_length is not None and SEQUENCE in first:
        first[SEQUENCE] = min(first[SEQUENCE], limits.max_length)
    own = _sizes(trial, tensors)
    if tensors:
        trial.run(own, tensors, " (the example's)")
    shorter = {**first, **{axis: min(first[axis], own[axis]) for axis in SEARCHED if axis in own}}
    smaller = {**shorter, **{axis: min(first[axis], own[axis]) for axis in chosen if axis in own}}
    for sizes in (first, shorter):
        if sizes != smaller:
            with contextlib.suppress(PosexportError):
                trial.run(sizes)
                return sizes
    trial.run(smaller)
    return smaller


def _sizes(trial: Trial, tensors: Mapping[str, Tensor]) -> Sizes:
    """The sizes of the example's named axes."""
    found: dict[str, tuple[int, str]] = {}
    for spec in trial.inputs:
        if spec.name not in tensors:
            continue
        for axis, size in zip(spec.axes, tensors[spec.name].shape, strict=True):
            if isinstance(axis, int):
                continue
            before, name = found.setdefault(axis, (size, spec.name))
            if before != size:
                raise PosexportError(
                    f"{trial.argument}: axis {axis} has the size {before} in the example's {name} and {size} in its "
                    f"{spec.name}; name the axes, as the third thing that the factory returns"
                )
    return {axis: size for axis, (size, _) in found.items()}


def _limited(
    limits: LengthContract, searched: Mapping[str, Found], base: Sizes, argument: str
) -> tuple[LengthContract, Sizes]:
    """The contract with the limits that were found, and the sizes to trace at: `base`, within the limits.

    A contract has one limit, so two axes get the smaller.
    """
    ends = {axis: each.limit for axis, each in searched.items() if each.limit is not None}
    if not ends:
        return limits, base
    limit = min([*ends.values(), *([] if limits.max_length is None else [limits.max_length])])
    if limit < 2:
        reason = next(each.reason for axis, each in searched.items() if axis in ends)
        raise PosexportError(f"{argument}: only inputs of one token are taken: {reason}")
    axes = [
        axis for axis in searched if axis in ends or (limits.max_length is not None and axis in limits.limited_axes)
    ]
    boundaries = [b for b in limits.boundaries if b <= limit]
    limited = msgspec.structs.replace(limits, max_length=limit, limited_axes=axes, boundaries=boundaries)
    return limited, {axis: min(size, limit) if axis in axes else size for axis, size in base.items()}


def _sound(trial: Trial, name: str, tensor: Tensor) -> None:
    """An output is made of finite float32 values or of integers, and has a name of its own."""
    if name in {spec.name for spec in trial.inputs}:
        raise PosexportError(f"{trial.argument}: output {name} has the name of an input; return it under another name")
    if tensor.dtype not in _COMPARED:
        how = "in the dtype of its input, x.dtype" if tensor.is_floating_point() else "as float32"
        raise PosexportError(
            f"{trial.argument}: output {name} is {tensor.dtype}; posexport compares torch.float32, int64, int32 and "
            f"bool: return it {how}"
        )
    if not tensor.dim():
        raise PosexportError(f"{trial.argument}: output {name} is one number for the whole batch; return it per row")
    if not bool(torch.isfinite(tensor).all()):
        kind = "NaN" if bool(tensor.isnan().any()) else "an infinity"
        raise PosexportError(
            f"{trial.argument}: output {name} holds {kind} where nothing is padded; there is no value to compare with"
        )


def _repeats(trial: Trial, sizes: Sizes) -> None:
    """The same inputs give the same outputs."""
    one, two = trial.run(sizes), trial.run(sizes)
    for name, tensor in one.items():
        if not torch.equal(tensor, two[name]):
            raise PosexportError(
                f"{trial.argument}: output {name} changes from call to call with the same inputs: the module draws "
                "random numbers, or counts its calls; a graph's outputs depend on its inputs alone"
            )


def _values_change_no_shape(trial: Trial, sizes: Sizes, outputs: list[OutputSpec]) -> None:
    """Outputs keep their shapes where tokens are padded, and where ids are other ones."""
    plain = example(trial.inputs, sizes)
    wanted = {name: list(tensor.shape) for name, tensor in trial.run(sizes, plain).items()}
    for spec in trial.inputs:
        changed = _changed(spec, plain[spec.name])
        if changed is None:
            continue
        how_changed = _how_changed(spec)
        other = {**plain, spec.name: changed}
        got = {name: list(tensor.shape) for name, tensor in trial.run(sizes, other, how_changed).items()}
        if got != wanted:
            with ValueReads() as reads:
                trial.run(sizes, other, how_changed)
            name = next((name for name in wanted if got.get(name) != wanted[name]), outputs[0].name)
            # which of the lines that read a value changes the shape is not known: the last is next to it
            how = f" ({reads.found[-1]})" if reads.found else ""
            raise PosexportError(
                f"{trial.argument}: the output's length is not the input's: it depends on the values of {spec.name}"
                f"{how}; posexport cannot tell which tokens it keeps (output {name}: {got.get(name)} instead of "
                f"{wanted[name]})"
            )


def _how_changed(spec: InputSpec) -> str:
    """What `_changed` did, in words."""
    if spec.role == "lengths":
        return f" where no row is whole (a sequence's size is x.shape[1], which {spec.name}.max() may be below)"
    return " with padding" if spec.role == "mask" else f" with other values of {spec.name}"


def _changed(spec: InputSpec, tensor: Tensor) -> Tensor | None:
    """Other values of an input: tokens padded on the right, or ids in another order."""
    changed = tensor.clone()
    if spec.role == "mask" and tensor.shape[-1] > _PADDED:
        changed[..., -_PADDED:] = 0
    elif spec.role == "lengths" and int(tensor.min()) > _PADDED:
        changed -= _PADDED
    elif spec.role in ("tokens", "types") and spec.size is not None:
        changed = (torch.tensor(spec.column_sizes or spec.size) - 1 - tensor).clamp(min=0)
    elif spec.role == "values":
        changed = -tensor
    else:
        return None
    return changed


def _in_float64(trial: Trial, sizes: Sizes) -> None:
    """The module runs in float64 as well, where it is small enough to be copied at once."""
    if not trial.small:
        return
    trial.module = in_precision(trial.fresh(), torch.float64)
    tensors = {n: t.double() if t.is_floating_point() else t for n, t in example(trial.inputs, sizes).items()}
    try:
        with computing_in(torch.float64):
            answer = trial(tensors)
    except BaseException as err:
        if is_external(err):
            raise
        line = line_of_error(err)
        raise PosexportError(
            f"{trial.argument}: the module raised {raised(err)} in float64, the precision of the reference"
            f"{f' ({line})' if line else ''}; use the dtype of the input or of a weight, x.dtype, where it names one"
        ) from err
    for name, tensor in answer.items():
        if not bool(torch.isfinite(tensor).all()):
            raise PosexportError(
                f"{trial.argument}: output {name} is NaN or infinite in float64, the precision of the reference, and "
                "finite in float32; a constant or a branch of the module fits one dtype alone"
            )
