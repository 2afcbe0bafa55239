"""What a user's module takes and gives, found by running it before anything is exported.

Everything that would make the export or the proof fail later is looked for here, where it takes a moment, and named in
one sentence. The module is run as a copy, so that what calls leave behind in it does not get into the graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor, nn

from posexport.errors import PosexportError
from posexport.sources import mapped
from posexport.sources.example import axis_sizes, example
from posexport.sources.length_search import LONGEST, Found, search
from posexport.sources.recognise.mode import plain
from posexport.sources.user_module import (
    at,
    copied,
    default_dtype,
    in_precision,
    likely_line,
    named_outputs,
    not_the_module_s,
    quoted,
    raised,
)
from posexport.sources.value_reads import ValueReads
from posexport.spec import BATCH, ENCODER_SEQUENCE, SEQUENCE, Axis, InputSpec, LengthContract, OutputSpec, ProofPlan

Sizes = dict[str, int]
#: axes whose longest input is looked for
_SEARCHED = (SEQUENCE, ENCODER_SEQUENCE)
_NAMES = {SEQUENCE: "inputs", ENCODER_SEQUENCE: "encoder inputs"}
#: a limit that is known is tried at once up to here; a longer one is approached, as far as memory and time allow
_AT_ONCE = 1024
#: padded tokens of a row, for the module that is asked whether its shapes depend on the mask
_PADDED = 2


@dataclass(frozen=True, kw_only=True)
class Probed:
    """``plan``: with lengths beyond the default grid, cheap enough to be proven too, where no limit was found."""

    outputs: list[OutputSpec]
    limits: LengthContract
    plan: ProofPlan
    remarks: list[str] = field(default_factory=list)


def probe(
    argument: str, module: nn.Module, inputs: list[InputSpec], tensors: Mapping[str, Tensor], limits: LengthContract
) -> Probed:
    """Run ``module`` at several sizes; ``tensors`` are the user's own example, ``limits`` what its encodings say.

    Raises:
        PosexportError: the module fails, or gives what no graph or no proof can give.
    """
    trial = _Trial(argument, module, inputs)
    base = _base(trial, tensors, limits)
    # a table that is made at the first call is made in the graph as well
    trial.watched = not trial.grown(base)
    searched = {axis: _searched(trial, base, axis, limits) for axis in _SEARCHED if axis in base}
    remarks = [
        f"{_NAMES[axis]} of at most {found.limit} tokens are accepted, longer ones are refused: {found.reason}"
        for axis, found in searched.items()
        if found.limit is not None and (axis not in limits.limited_axes or found.limit != limits.max_length)
    ]
    limits, traced = _limited(trial, limits, searched)
    first, second = _two_sizes(base, limits)
    outputs = _outputs(trial, first, second)
    _repeats(trial, first)
    _values_change_no_shape(trial, first, outputs)
    _in_float64(trial, first)
    sequence = searched.get(SEQUENCE)
    return Probed(
        outputs=outputs,
        limits=limits,
        plan=ProofPlan(
            further=[] if sequence is None or sequence.limit is not None else sequence.cheap, trace_sizes=traced
        ),
        remarks=remarks,
    )


class _Trial:
    """The module to try, as a copy where it can be copied."""

    def __init__(self, argument: str, module: nn.Module, inputs: list[InputSpec]) -> None:
        self.argument, self.inputs = argument, inputs
        self.original = module
        self.small = mapped.size_of(module.parameters()) <= mapped.LARGE
        self.module = self.fresh() if self.small else module
        self.shapes = self.table_shapes()
        self.watched = self.small

    def fresh(self) -> nn.Module:
        return copied(self.argument, self.original)

    def __call__(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # a module may write to its inputs
        clones = {name: tensor.clone() for name, tensor in tensors.items()}
        with plain(), torch.no_grad():
            return named_outputs(self.module(**clones))

    def run(self, sizes: Sizes, tensors: Mapping[str, Tensor] | None = None, what: str = "") -> dict[str, Tensor]:
        """The outputs at ``sizes``, or a PosexportError that says what the module did there."""
        try:
            return self(example(self.inputs, sizes) if tensors is None else tensors)
        except PosexportError as err:
            raise PosexportError(f"{self.argument}: {err}") from err
        except BaseException as err:
            if not_the_module_s(err):
                raise
            line = likely_line(err)
            raise PosexportError(
                f"{self.argument}: the module failed at sizes {sizes}{what}: {type(err).__name__}: {quoted(err)}"
                + (f" ({line})" if line else "")
            ) from err

    def attempt(self, sizes: Sizes) -> str:
        """Why the module does not take ``sizes``; nothing where it does."""
        try:
            self(example(self.inputs, sizes))
        except BaseException as err:
            if isinstance(err, KeyboardInterrupt):
                raise
            if not_the_module_s(err):
                raise _NoRoomError from err
            line = likely_line(err)
            return f"the module raised {raised(err)} at {_at(sizes)}" + (f" ({line})" if line else "")
        return self.grown(sizes)

    def table_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor that the module holds."""
        return {
            f"{path}.{name}" if path else name: tuple(value.shape)
            for path, part in self.module.named_modules()
            for name, value in {**vars(part), **dict(part.named_buffers(recurse=False))}.items()
            if isinstance(value, Tensor)
        }

    def grown(self, sizes: Sizes) -> str:
        """Which of its tensors the module made anew, in another shape, in a call; nothing where it made none."""
        shapes = self.table_shapes() if self.watched else {}
        changed = [name for name, shape in shapes.items() if self.shapes.get(name) not in (None, shape)]
        if not changed:
            return ""
        name = changed[0]
        before, after = list(self.shapes[name]), list(shapes[name])
        self.module = self.fresh()
        return (
            f"forward regrows {name} (shape {before}) at {_at(sizes)} (shape {after}), and a graph keeps the rows "
            "that it was traced with; make it for the longest input in __init__"
        )


class _NoRoomError(Exception):
    """The machine has not enough memory for a call."""


def _base(trial: _Trial, tensors: Mapping[str, Tensor], limits: LengthContract) -> Sizes:
    """Sizes that the module takes: those to trace at, or where these are too long, the example's."""
    first = axis_sizes(trial.inputs)
    if limits.max_length is not None and SEQUENCE in first:
        first[SEQUENCE] = min(first[SEQUENCE], limits.max_length)
    own = _sizes(trial, tensors)
    if tensors:
        trial.run(own, tensors, " (the example's)")
    lower = {**first, **{axis: min(first[axis], own[axis]) for axis in _SEARCHED if axis in own}}
    if lower != first:
        try:
            trial.run(first)
        except PosexportError:
            trial.run(lower)
            return lower
    trial.run(first)
    return first


def _sizes(trial: _Trial, tensors: Mapping[str, Tensor]) -> Sizes:
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


def _searched(trial: _Trial, base: Sizes, axis: str, limits: LengthContract) -> Found:
    known = limits.max_length if axis in limits.limited_axes else None
    alone = {**base, BATCH: 1} if BATCH in base else base

    def attempt(length: int) -> str:
        return trial.attempt({**alone, axis: length})

    # an encoding of posexport's says what is known; a table of the module's own may still be shorter
    if known is not None and known <= base[axis]:
        return Found(known)
    try:
        if known is not None and known <= _AT_ONCE and not attempt(known):
            return Found(known)
        return search(attempt, base[axis], known or LONGEST)
    except _NoRoomError:
        return Found(base[axis])


def _limited(
    trial: _Trial, limits: LengthContract, searched: Mapping[str, Found]
) -> tuple[LengthContract, dict[str, int]]:
    """The contract with the limits that were found, and the sizes to trace at, where the usual ones are beyond these.

    A contract has one limit, so two axes get the smaller.
    """
    ends = {axis: each.limit for axis, each in searched.items() if each.limit is not None}
    if not ends:
        return limits, {}
    limit = min([*ends.values(), *([] if limits.max_length is None else [limits.max_length])])
    if limit < 2:
        reason = next(each.reason for axis, each in searched.items() if axis in ends)
        raise PosexportError(f"{trial.argument}: only inputs of one token are taken: {reason}")
    axes = [
        axis for axis in searched if axis in ends or (limits.max_length is not None and axis in limits.limited_axes)
    ]
    traced = axis_sizes(trial.inputs)
    boundaries = [b for b in limits.boundaries if b <= limit]
    limited = msgspec.structs.replace(limits, max_length=limit, limited_axes=axes, boundaries=boundaries)
    return limited, {axis: limit for axis in axes if traced[axis] > limit}


def _two_sizes(base: Sizes, limits: LengthContract) -> tuple[Sizes, Sizes]:
    """Two different sizes of every axis, within the limits."""
    first, second = dict(base), {axis: size + 4 for axis, size in base.items()}
    for axis in limits.limited_axes if limits.max_length is not None else []:
        if axis in second:
            second[axis] = min(second[axis], limits.max_length or 1)
            first[axis] = min(first[axis], max(1, second[axis] - 1))
    return first, second


def _outputs(trial: _Trial, first: Sizes, second: Sizes) -> list[OutputSpec]:
    """An output's axis is the named one it varies with."""
    argument, answers = trial.argument, [trial.run(sizes) for sizes in (first, second)]
    ranks = [{name: tensor.dim() for name, tensor in answer.items()} for answer in answers]
    if ranks[0] != ranks[1]:
        raise PosexportError(
            f"{argument}: the module gives outputs with other names or numbers of axes, {ranks[0]} and {ranks[1]}, "
            f"at sizes {first} and {second}; they must not depend on sizes"
        )
    specs = []
    for name, tensor in answers[0].items():
        axes: list[Axis] = []
        for a, b in zip(tensor.shape, answers[1][name].shape, strict=True):
            match = [axis for axis in first if (first[axis], second[axis]) == (a, b)]
            if a != b and not match:
                raise PosexportError(
                    f"{argument}: output {name} has an axis of {a}, then {b}, at sizes {first}, {second}"
                )
            axes.append(match[0] if match and a != b else int(a))
        specs.append(OutputSpec(name=name, axes=axes))
        _sound(trial, name, tensor)
    return specs


def _sound(trial: _Trial, name: str, tensor: Tensor) -> None:
    """An output is made of finite float32 values, and has a name of its own."""
    if name in {spec.name for spec in trial.inputs}:
        raise PosexportError(f"{trial.argument}: output {name} has the name of an input; return it under another name")
    if tensor.dtype != torch.float32:
        how = "in the dtype of its input, x.dtype" if tensor.is_floating_point() else "as float32"
        raise PosexportError(
            f"{trial.argument}: output {name} is {tensor.dtype}; posexport compares torch.float32: return it {how}"
        )
    if not bool(torch.isfinite(tensor).all()):
        kind = "NaN" if bool(tensor.isnan().any()) else "an infinity"
        raise PosexportError(
            f"{trial.argument}: output {name} holds {kind} where nothing is padded; there is no value to compare with"
        )


def _repeats(trial: _Trial, sizes: Sizes) -> None:
    """The same inputs give the same outputs."""
    one, two = trial.run(sizes), trial.run(sizes)
    for name, tensor in one.items():
        if not torch.equal(tensor, two[name]):
            raise PosexportError(
                f"{trial.argument}: output {name} changes from call to call with the same inputs: the module draws "
                "random numbers, or counts its calls; a graph's outputs depend on its inputs alone"
            )


def _values_change_no_shape(trial: _Trial, sizes: Sizes, outputs: list[OutputSpec]) -> None:
    """Outputs keep their shapes where tokens are padded, and where ids are other ones."""
    plain = example(trial.inputs, sizes)
    wanted = {name: list(tensor.shape) for name, tensor in trial.run(sizes, plain).items()}
    for spec in trial.inputs:
        changed = _changed(spec, plain[spec.name])
        if changed is None:
            continue
        with ValueReads() as reads:
            padding = " with padding" if spec.role == "mask" else f" with other values of {spec.name}"
            answer = trial.run(sizes, {**plain, spec.name: changed}, padding)
        got = {name: list(tensor.shape) for name, tensor in answer.items()}
        if got != wanted:
            name = next((name for name in wanted if got.get(name) != wanted[name]), outputs[0].name)
            # which of the lines that read a value changes the shape is not known: the last is next to it
            how = f" ({reads.found[-1]})" if reads.found else ""
            raise PosexportError(
                f"{trial.argument}: the output's length is not the input's: it depends on the values of {spec.name}"
                f"{how}; posexport cannot tell which tokens it keeps (output {name}: {got.get(name)} instead of "
                f"{wanted[name]})"
            )


def _changed(spec: InputSpec, tensor: Tensor) -> Tensor | None:
    """Other values of an input: tokens padded on the right, or ids in another order."""
    changed = tensor.clone()
    if spec.role == "mask" and tensor.shape[-1] > _PADDED:
        changed[..., -_PADDED:] = 0
    elif spec.role in ("tokens", "types") and spec.size is not None:
        changed = (spec.size - 1 - tensor).clamp(min=0)
    elif spec.role == "values":
        changed = -tensor
    else:
        return None
    return changed


def _in_float64(trial: _Trial, sizes: Sizes) -> None:
    """The module runs in float64 as well, where it is small enough to be copied at once."""
    if not trial.small:
        return
    trial.module = in_precision(trial.fresh(), torch.float64)
    tensors = {n: t.double() if t.is_floating_point() else t for n, t in example(trial.inputs, sizes).items()}
    try:
        with default_dtype(torch.float64):
            trial(tensors)
    except BaseException as err:
        if not_the_module_s(err):
            raise
        line = likely_line(err)
        raise PosexportError(
            f"{trial.argument}: the module raised {raised(err)} in float64, the precision of the reference"
            f"{f' ({line})' if line else ''}; use the dtype of the input or of a weight, x.dtype, where it names one"
        ) from err


def _at(sizes: Sizes) -> str:
    return at({axis: size for axis, size in sizes.items() if axis in _SEARCHED} or sizes)
