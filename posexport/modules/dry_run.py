"""Runs a user's module at several sizes before anything is exported: its limits, its outputs, and what no graph can do.

What would make the export or the proof fail later fails here first, in one sentence. A copy of the module is run, as a
call may change it.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.spec import (
    BATCH,
    ENCODER_SEQUENCE,
    SEQUENCE,
    InputSpec,
    LengthContract,
    Limits,
    OutputSpec,
    ProofPlan,
)
from posexport.errors import PosexportError
from posexport.modules.axes.classified import Varying
from posexport.modules.axes.largest import Largest, largest_of, largest_of_tokens
from posexport.modules.axes.memory import CHOSEN, Growth, times_larger, within_memory
from posexport.modules.axes.outputs import elements_per_token, output_axes
from posexport.modules.axes.sizes import (
    Range,
    further_sizes,
    other_ranges,
    proof_sizes,
    standard_sizes,
    trace_sizes,
    two_sizes,
    with_ranges,
)
from posexport.modules.call import CallError, call
from posexport.modules.drawn_calls import TOKEN_AXES, DrawnCalls, Sizes
from posexport.modules.left_out import has_values
from posexport.modules.many_frames import example_sizes, with_many_frames
from posexport.modules.rows_alone import rows_mix
from posexport.modules.set_parameters import check_parameters
from posexport.modules.value_reads import RandomDraws, ValueReads
from posexport.sources.example import axis_sizes, example, scaled
from posexport.sources.torch_fixes.module_precision import in_precision

_NAMES = {SEQUENCE: "inputs", ENCODER_SEQUENCE: "encoder inputs"}
#: tokens of a row that are padded, to see whether shapes of outputs depend on the mask
_PADDED = 2
#: dtypes of outputs that a proof compares
_COMPARED = (torch.float32, torch.int64, torch.int32, torch.bool)


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The results.

    Attributes:
        outputs: names and axes of the module's outputs.
        limits: the lengths and sizes that it accepts.
        further: lengths beyond the default grid, cheap enough to be proven too, where there is no limit.
        remarks: the limits, in sentences.
        batch_invariant: other rows of a batch do not change a row, as far as a call in float64 shows.
        makes_tables: the sizes to trace at are beyond a table of an earlier call.
    """

    outputs: list[OutputSpec]
    limits: Limits
    further: list[int]
    remarks: list[str] = field(default_factory=list)
    batch_invariant: bool = True
    makes_tables: bool = False


def dry_run(
    argument: str,
    module: nn.Module,
    inputs: list[InputSpec],
    tensors: Mapping[str, Tensor],
    limits: LengthContract,
    groups: Mapping[str, Varying],
    *,
    keeps_tables: bool = False,
) -> DryRun:
    """Runs ``module`` at several sizes of ``inputs``. PosexportError: it fails, or does what no graph or proof can.

    ``tensors``: the user's example. ``limits``: of the module's encodings. ``groups``: its axes, by name.
    ``keeps_tables``: tables that forward replaces by larger ones are limits, whatever is in them.
    """
    calls = DrawnCalls(argument, module, inputs)
    ranges = other_ranges(list(axis_sizes(inputs)), groups)
    steps = {axis: group.step for axis, group in groups.items()}
    base = _accepted_sizes(calls, tensors, limits, groups)
    base = with_many_frames(calls, base, tensors, steps)
    # a table that the first call makes is made in the graph as well
    calls.watched = not calls.grown(base) and not calls.beyond
    calls.keeps_tables = keeps_tables
    # the longest input, in tokens
    tokens = {
        axis: largest_of_tokens(calls, base, axis, limits, steps.get(axis, 1)) for axis in TOKEN_AXES if axis in base
    }
    remarks = [
        f"{_NAMES[axis]} of at most {largest.limit} tokens are accepted, longer ones are refused: {largest.reason}"
        for axis, largest in tokens.items()
        if largest.limit is not None and (axis not in limits.limited_axes or largest.limit != limits.max_length)
    ]
    limits, traced = _limited(limits, tokens, base, argument)
    # the largest size of every other axis
    per_token = elements_per_token(calls.module, calls.run, base, ranges)
    largest_sizes = {axis: largest_of(calls, base, axis, extent, per_token) for axis, extent in ranges.items()}
    ranges = {axis: replace(extent, most=largest_sizes[axis].limit) for axis, extent in ranges.items()}
    remarks += [
        f"{axis} of at most {largest.limit} is accepted, more is refused: {largest.reason}"
        for axis, largest in largest_sizes.items()
        if largest.limit is not None
    ]
    limits = with_ranges(limits, groups, ranges)
    # beyond a table of an earlier call, which is made anew, as by a new module
    traced |= {axis: size for axis, size in calls.beyond.items() if axis != BATCH}
    # the outputs, and whether they can be exported and proven
    first, second = two_sizes(base, limits, ranges, times_larger(calls.run, base) if ranges else 1.0)
    outputs = output_axes(argument, calls.run, first, second, further_sizes(first, second, limits), calls.shapes)
    of_batches, on_outputs = _checked_outputs(calls, first, outputs)
    remarks += on_outputs
    # a number, as a loss or a scale of logits
    outputs = [spec if spec.axes else msgspec.structs.replace(spec, axes=[1]) for spec in outputs]
    _check_repeats(calls, first)
    check_parameters(argument, calls.original, calls.module)
    whole_row = _check_shapes_by_values(calls, first, outputs)
    if whole_row:
        limits = msgspec.structs.replace(limits, paddings=["ragged-right"])
        remarks.append(whole_row)
    proven, left_out = _proof_sizes(calls, first, second, ranges)
    few = {axis: (second if axis == BATCH else first)[axis] for axis in first}
    _check_float64(calls, few)
    invariant = not rows_mix(calls, few, outputs)
    if not invariant:
        left_out.append(
            "a row's outputs depend on the other rows of its batch, in the module as in the bundle: answers for one "
            "row differ with the batch that it is in"
        )
    sequence = tokens.get(SEQUENCE)
    return DryRun(
        outputs=outputs,
        limits=Limits.of(
            limits,
            ProofPlan(
                proof_sizes=proven,
                elements_per_token=per_token,
                trace_sizes={axis: size for axis, size in traced.items() if axis_sizes(inputs)[axis] != size},
            ),
        ),
        further=[] if sequence is None or sequence.limit is not None else sequence.cheap,
        remarks=[*remarks, *left_out],
        batch_invariant=invariant and not of_batches,
        makes_tables=bool(calls.beyond),
    )


def _checked_outputs(calls: DrawnCalls, sizes: Sizes, outputs: list[OutputSpec]) -> tuple[list[str], list[str]]:
    """The outputs that are numbers of a whole batch, and remarks; PosexportError for one that no proof can compare."""
    drawn = example(calls.inputs, sizes)
    results, remarks = calls.run(sizes), []
    for spec, tensor in zip(outputs, results.values(), strict=True):
        _check_output(calls, spec.name, tensor)
    zero = [name for name, tensor in results.items() if not bool(tensor.any())]
    if zero and len(zero) < len(results):
        remarks.append(f"{', '.join(zero)}: zero for all inputs that were tried; the proof takes nothing but zeros")
    fixed = {spec.name: spec for spec in outputs if all(isinstance(axis, int) for axis in spec.axes)}
    of_batches = _of_batches(calls, sizes, drawn, [*fixed])
    for name in of_batches:
        what = f"one tensor {fixed[name].axes}" if fixed[name].axes else "one number"
        remarks.append(f"{name}: {what} for the whole batch, which changes with every row of it")
    return of_batches, remarks


def _proof_sizes(
    calls: DrawnCalls, first: Sizes, second: Sizes, ranges: Mapping[str, Range]
) -> tuple[list[Sizes], list[str]]:
    """Sizes to prove axes at that are neither batch nor sequence, within the memory, and a remark on one left out."""
    sizes = proof_sizes(ranges)
    if not sizes:
        return [], []
    # other axes than the rows stay, so that the growth is theirs
    larger = {axis: (second if axis in ranges or axis == BATCH else first)[axis] for axis in first}
    growth = Growth.of(calls.run, first, larger, ranges)
    return within_memory(sizes, {axis: extent.inside(extent.example) for axis, extent in ranges.items()}, growth)


def _accepted_sizes(
    calls: DrawnCalls, tensors: Mapping[str, Tensor], limits: LengthContract, groups: Mapping[str, Varying]
) -> Sizes:
    """Sizes that the module accepts: those to trace at, or where these are too large, the example's."""
    default = axis_sizes(calls.inputs)
    chosen = trace_sizes(other_ranges(list(default), groups))
    first = {**default, **chosen, **standard_sizes(groups, default)}
    if limits.max_length is not None and SEQUENCE in first:
        first[SEQUENCE] = min(first[SEQUENCE], limits.max_length)
    of_example = example_sizes(calls, tensors)
    if tensors:
        calls.run(of_example, tensors, " (the example's)")
    # fewer tokens, then less of the other axes too
    shorter = {**first, **{axis: min(first[axis], of_example[axis]) for axis in TOKEN_AXES if axis in of_example}}
    smaller = {**shorter, **{axis: min(first[axis], of_example[axis]) for axis in chosen if axis in of_example}}
    for sizes in (first, shorter) if shorter != first else (first,):
        if sizes != smaller and (calls.call_bytes(sizes) or 0) <= CHOSEN:
            with contextlib.suppress(PosexportError):
                calls.run(sizes)
                return sizes
    calls.run(smaller)
    return smaller


def _limited(
    limits: LengthContract, tokens: Mapping[str, Largest], base: Sizes, argument: str
) -> tuple[LengthContract, Sizes]:
    """The contract with the longest inputs, and ``base`` within them, to trace at.

    A contract has one limit, so two axes get the smaller one.
    """
    by_axis = {axis: largest.limit for axis, largest in tokens.items() if largest.limit is not None}
    if not by_axis:
        return limits, base
    limit = min([*by_axis.values(), *([] if limits.max_length is None else [limits.max_length])])
    if limit < 2:
        reason = next(largest.reason for axis, largest in tokens.items() if axis in by_axis)
        raise PosexportError(f"{argument}: only inputs of one token are taken: {reason}")
    axes = [
        axis for axis in tokens if axis in by_axis or (limits.max_length is not None and axis in limits.limited_axes)
    ]
    boundaries = [b for b in limits.boundaries if b <= limit]
    limited = msgspec.structs.replace(limits, max_length=limit, limited_axes=axes, boundaries=boundaries)
    return limited, {axis: min(size, limit) if axis in axes else size for axis, size in base.items()}


def _of_batches(calls: DrawnCalls, sizes: Sizes, drawn: Mapping[str, Tensor], names: list[str]) -> list[str]:
    """Those of the outputs ``names``, of one size at all sizes of the inputs, that depend on the inputs of a batch."""
    if not names:
        return []
    inputs = [spec for spec in calls.inputs if BATCH in spec.axes] or calls.inputs
    others = {spec.name: _changed(spec, drawn[spec.name]) for spec in inputs}
    changed = {name: tensor for name, tensor in others.items() if tensor is not None}
    # a loss of spectra does not change with the sign, nor a ratio where both of its inputs are halved
    halved = [{spec.name: scaled(spec, drawn[spec.name], 0.5)} for spec in inputs if spec.role == "values"]
    before = calls.run(sizes, drawn)
    after = [calls.run(sizes, {**drawn, **tensors}, " with other inputs") for tensors in (changed, *halved)]
    return [name for name in names if not all(torch.equal(before[name], outputs[name]) for outputs in after)]


def _check_output(calls: DrawnCalls, name: str, tensor: Tensor) -> None:
    """An output has finite float32 values or integers."""
    if tensor.dtype not in _COMPARED:
        how = "in the dtype of its input, x.dtype" if tensor.is_floating_point() else "as float32"
        how = "as two numbers, by torch.view_as_real" if tensor.is_complex() else how
        raise PosexportError(
            f"{calls.argument}: output {name} is {tensor.dtype}; posexport compares torch.float32, int64, int32 and "
            f"bool: return it {how}"
        )
    if not has_values(tensor):
        kind = "NaN" if bool(tensor.isnan().any()) else "an infinity"
        raise PosexportError(
            f"{calls.argument}: output {name} holds {kind} where nothing is padded; there is no value to compare with"
        )


def _check_repeats(calls: DrawnCalls, sizes: Sizes) -> None:
    """The same inputs give the same outputs."""
    drawn = example(calls.inputs, sizes)
    one, two = calls.run(sizes, drawn), calls.run(sizes)
    for name, tensor in one.items():
        if not torch.equal(tensor, two[name]):
            with RandomDraws() as draws:
                calls.run(sizes, drawn)
            why = f"{draws.lines[0]} draws" if draws.lines else "the module counts its calls, or draws"
            raise PosexportError(
                f"{calls.argument}: output {name} changes from call to call with the same inputs: {why} random "
                "numbers; a graph's outputs depend on its inputs alone"
            )


def _check_shapes_by_values(calls: DrawnCalls, sizes: Sizes, outputs: list[OutputSpec]) -> str:
    """Outputs keep their shapes where tokens are padded, and for other ids and values.

    Returns a remark where that needs one row without padding.
    """
    drawn, remark = example(calls.inputs, sizes), ""
    expected = {name: list(tensor.shape) for name, tensor in calls.run(sizes).items()}
    for spec in calls.inputs:
        # run it with one input changed
        changed = _changed(spec, drawn[spec.name])
        if changed is None:
            continue
        if spec.role == "lengths" and not _keeps_shapes(calls, {**drawn, spec.name: changed}, expected):
            changed[0] = drawn[spec.name][0]
            remark = (
                f"each batch must have one row without padding, {spec.name}.max() == x.shape[1], and others are "
                f"refused: the module takes {spec.name}.max() for the size of the sequence"
            )
        what, other = _described_change(spec), {**drawn, spec.name: changed}
        got = {name: list(tensor.shape) for name, tensor in calls.run(sizes, other, what).items()}
        if got == expected:
            continue
        # once more, to name a line: the last one that reads a value, since it is not known which changes the shape
        with ValueReads() as reads:
            calls.run(sizes, other, what)
        name = next((name for name in expected if got.get(name) != expected[name]), outputs[0].name)
        line = f" ({reads.lines[-1]})" if reads.lines else ""
        raise PosexportError(
            f"{calls.argument}: the output's length is not the input's: it depends on the values of {spec.name}"
            f"{line}; posexport cannot tell which tokens it keeps (output {name}: {got.get(name)} instead of "
            f"{expected[name]})"
        )
    return remark


def _keeps_shapes(calls: DrawnCalls, tensors: Mapping[str, Tensor], expected: Mapping[str, list[int]]) -> bool:
    try:
        return {name: list(tensor.shape) for name, tensor in call(calls.module, tensors).items()} == expected
    except CallError:
        return False


def _described_change(spec: InputSpec) -> str:
    """What `_changed` changes, as a string."""
    if spec.role == "lengths":
        return f" where {spec.name} are shorter than the sequence, all or all but the first"
    return " with padding" if spec.role == "mask" else f" with other values of {spec.name}"


def _changed(spec: InputSpec, tensor: Tensor) -> Tensor | None:
    """Other values of an input: tokens padded on the right, or other ids; None where there are none to try."""
    changed = tensor.clone()
    if spec.role == "mask" and tensor.shape[-1] > _PADDED:
        changed[..., -_PADDED:] = spec.padding
    elif spec.role == "lengths" and int(tensor.min()) > _PADDED:
        changed -= _PADDED
    elif spec.role in ("tokens", "types") and spec.size is not None:
        least = spec.least if isinstance(spec.least, int) else 0
        changed = (torch.tensor(spec.column_sizes or spec.size) - 1 - tensor).clamp(min=least)
    elif spec.role == "rows":
        changed = tensor.max() - tensor
    elif spec.role == "values":
        changed = scaled(spec, tensor, 0.5 if spec.positive is True else -1)
    else:
        return None
    return changed


def _check_float64(calls: DrawnCalls, sizes: Sizes) -> None:
    """The module runs in float64 as well, where it is small enough to be copied."""
    if not calls.small:
        return
    calls.module = in_precision(calls.fresh(), torch.float64)
    single = example(calls.inputs, sizes)
    tensors = {n: t.double() if t.is_floating_point() else t for n, t in single.items()}
    try:
        outputs = call(calls.module, tensors, torch.float64)
    except CallError as failed:
        raise PosexportError(
            f"{calls.argument}: {failed.sentence('in float64, the precision of the reference')}; use the dtype of the "
            "input or of a weight, x.dtype, where it names one"
        ) from failed.error
    for name, tensor in outputs.items():
        # where float32 has none either, the proof tells for which inputs
        if not has_values(tensor) and has_values(call(calls.fresh(), single)[name]):
            raise PosexportError(
                f"{calls.argument}: output {name} is NaN or infinite in float64, the precision of the reference, and "
                "finite in float32; a constant or a branch of the module fits one dtype alone"
            )
