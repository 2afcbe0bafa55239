"""A module that is in memory, from a user's Python session or from a factory of a file.

Its inputs are example tensors: ``{"input_ids": ids, "attention_mask": mask}``, or a tuple in the order of the
parameters of ``forward``. `posexport.modules.axes` finds out which axes vary; ``axes`` names them instead:
``{"x": ["batch_size", "sequence_length", 16]}``.
"""

import hashlib
import inspect
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from keyword import iskeyword
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.spec import (
    BATCH,
    CARRIED,
    ENCODER_SEQUENCE,
    HEIGHT,
    PRESENT,
    SAMPLES,
    SEQUENCE,
    WIDTH,
    Axis,
    InputSpec,
    OutputSpec,
    Promises,
)
from posexport.base.system.freed_memory import trim
from posexport.base.targets.dtypes import DTYPES, MODEL_DTYPE
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError, RefusedSizesError
from posexport.models.definition import limits_of_module
from posexport.modules.axes.discover import Discovered, discover
from posexport.modules.axes.example_calls import ExampleCalls, counts_tokens
from posexport.modules.axes.refused import Refusals
from posexport.modules.axes.sizes import STANDARD, narrowed
from posexport.modules.copied import copied
from posexport.modules.drawn_calls import DrawnCalls
from posexport.modules.dry_run import dry_run
from posexport.modules.eval_mode import in_eval_mode
from posexport.modules.keyed_tables import with_lengths_of_tables
from posexport.modules.narrow_integers import with_example_types
from posexport.modules.padding_values import with_padding_values
from posexport.modules.returned import names_beside
from posexport.modules.user_module import PAST_IS_OURS, by_name
from posexport.modules.value_branches import remarks_on, ways_that_fit
from posexport.modules.value_ranges import with_ranges
from posexport.modules.vocabularies import with_vocabularies
from posexport.sources.example import axis_sizes
from posexport.sources.load_options import Shown
from posexport.sources.source import Source, digest

#: the dynamic axes that a user's module may have, also with an input's name and ``_`` before them
_AXES = (BATCH, SEQUENCE, ENCODER_SEQUENCE, HEIGHT, WIDTH, SAMPLES)

#: nothing but what calls show
NOTHING_SHOWN = Shown()


def module_source(
    module: nn.Module,
    inputs: Any,
    axes: Any = None,
    known: Sequence[InputSpec] = (),
    shown: Shown = NOTHING_SHOWN,
) -> Source:
    """The source of a copy of ``module``, which stays as it is; ``known`` and ``shown``: see `source_of_module`.

    Raises:
        PosexportError: the module cannot be copied, the inputs do not tell its arguments, or it fails.
    """
    name = type(module).__name__
    copy = copied(name, module, "the conversion must not change yours")
    return source_of_module(name, copy, inputs, axes, label=name, fingerprint=b"", known=known, shown=shown)


def source_of_module(
    argument: str,
    module: nn.Module,
    inputs: Any = None,
    axes: Any = None,
    *,
    label: str,
    fingerprint: bytes,
    known: Sequence[InputSpec] = (),
    shown: Shown = NOTHING_SHOWN,
) -> Source:
    """The source of ``module``, from calls of it; it is put into eval mode and float32 in place.

    ``argument``: its name in messages. ``fingerprint``: bytes that are hashed together with its weights. ``known``: the
    inputs of a bundle that it is compared with, for a module without an example and without an attribute ``inputs``.
    ``shown``: what graphs showed of its axes.
    """
    remarks = []
    if module.training and (unsure := _random_in_training(module)):
        remarks.append(f"the module was in training mode ({unsure}); it is converted in eval mode")
    module = in_eval_mode(argument, module)
    # the inputs, from the example or without one
    tensors = {} if inputs is None else with_example_types(module, _tensors(argument, module, inputs))
    if tensors:
        discovered, specs, on_inputs = _of_example(argument, module, tensors, axes, shown.fixed)
    else:
        discovered, specs, on_inputs = Discovered(shapes={}), _without_example(argument, module, known), []
    # limits and outputs, from calls at several sizes
    limits = with_lengths_of_tables(limits_of_module(module), module)
    if any(spec.role == "lengths" for spec in specs):
        limits = msgspec.structs.replace(limits, paddings=["right", "ragged-right"])
    groups = narrowed(discovered.groups, axis_sizes(specs), shown.steps, shown.least)
    # the user's names of axes stay
    on_refused = Refusals(argument, module, specs, tensors, groups) if tensors and not axes else None
    try:
        results = dry_run(argument, module, specs, tensors, limits, groups, keeps_tables=shown.keeps_tables)
    except RefusedSizesError as err:
        change = None if on_refused is None else on_refused(err.sizes)
        if change is None or change.added_to(shown) == shown:
            raise
        more = change.added_to(shown)
        source = source_of_module(
            argument, module, inputs, label=label, fingerprint=fingerprint, known=known, shown=more
        )
        return msgspec.structs.replace(source, remarks=[*remarks, *source.remarks, *change.remarks.values()])
    trim()
    limits = msgspec.structs.replace(results.limits, trace_sizes={**results.limits.trace_sizes, **shown.traced})
    if discovered.tokens is not None:
        limits = msgspec.structs.replace(limits, min_length=discovered.tokens, max_length=discovered.tokens)
    specs, bounded = with_vocabularies(argument, module, specs, tensors)
    outputs, on_names = _beside(specs, results.outputs)
    user = by_name(argument, module, specs, outputs)
    user.has_whole_row, user.makes_tables = limits.needs_whole_row, results.makes_tables
    user.ways = ways_that_fit(DrawnCalls(argument, module, specs).module, specs, limits.trace_sizes)
    encodings = [submodule for submodule in module.modules() if isinstance(submodule, Encoding)]
    first = encodings[0] if encodings else None
    return Source(
        name=argument,
        label=label,
        kind="python",
        module=user,
        inputs=specs,
        outputs=outputs,
        limits=limits,
        encoding=None if first is None else first.spec,
        task="features",
        sha256=hashlib.sha256(fingerprint + digest(module).encode()).hexdigest(),
        further=results.further,
        on_refused=None if on_refused is None else partial(on_refused, keep=SEQUENCE),
        call_bytes=lambda sizes: DrawnCalls(argument, module, specs).call_bytes(sizes),
        promises=Promises(
            padding_invariant=False,
            positional=None if first is None else bool(first.hooks),
            batch_invariant=results.batch_invariant,
        ),
        remarks=[
            *remarks,
            *on_inputs,
            *bounded,
            *on_names,
            *results.remarks,
            *remarks_on(user.ways),
        ],
        notes=discovered.notes,
    )


def _beside(inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> tuple[list[OutputSpec], list[str]]:
    """``outputs`` with names that no input has, and a remark on each that is another one."""
    names = names_beside([spec.name for spec in inputs], [spec.name for spec in outputs])
    remarks = [f"output {name} is called {new}: an input has its name" for name, new in names.items() if name != new]
    return [msgspec.structs.replace(spec, name=names[spec.name]) for spec in outputs], remarks


def _random_in_training(module: nn.Module) -> str:
    """The first submodule that computes otherwise in training mode; empty where none is known to."""
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase, nn.RReLU)  # noqa: SLF001 (no public base)
    for path, submodule in module.named_modules():
        if isinstance(submodule, kinds) and getattr(submodule, "p", True) and submodule.training:
            return f"{type(submodule).__name__} {path}".strip()
    return ""


def _tensors(argument: str, module: nn.Module, inputs: Any) -> dict[str, Tensor]:
    """The example by name; a tuple or a lone tensor has the names of forward's parameters, in their order."""
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if isinstance(inputs, tuple | list) and inputs:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [name for name, p in inspect.signature(module.forward).parameters.items() if p.kind in kinds]
        if len(inputs) > len(names):
            raise PosexportError(
                f"{argument}: {len(inputs)} inputs for a forward with the parameters {', '.join(names) or 'none'}; "
                "give a dict from names to tensors"
            )
        inputs = dict(zip(names, inputs, strict=False))
    if not isinstance(inputs, Mapping) or not inputs:
        raise PosexportError(f"{argument}: inputs must map names to tensors, got {type(inputs).__name__}")
    for name, tensor in inputs.items():
        _check_example(argument, name, tensor)
    if not any(tensor.dim() for tensor in inputs.values()):
        raise PosexportError(f"{argument}: the examples of {', '.join(inputs)} are single numbers; one must have axes")
    return {name: _as_input(tensor) for name, tensor in inputs.items()}


def _check_example(argument: str, name: Any, tensor: Any) -> None:
    """Raises PosexportError unless an example can be an input: a named tensor with values, of a supported dtype."""
    if isinstance(name, str) and not isinstance(tensor, Tensor) and _holds_tensors(tensor):
        raise PosexportError(
            f"{argument}: the example of {name} is a {type(tensor).__name__}, and an input must be one tensor; "
            f"{PAST_IS_OURS}"
        )
    if not isinstance(name, str) or not isinstance(tensor, Tensor):
        raise PosexportError(f"{argument}: inputs must map names to tensors, got {name!r}: {type(tensor).__name__}")
    if not name.isidentifier() or iskeyword(name) or name == "self":
        raise PosexportError(f"{argument}: input {name!r} cannot be the name of an argument of forward")
    if tensor.is_meta or not tensor.numel():
        raise PosexportError(
            f"{argument}: the example of {name} must hold values, got shape {list(tensor.shape)}"
            f"{' on the device meta' if tensor.is_meta else ''}"
        )
    if tensor.is_complex():
        raise PosexportError(
            f"input {name} is {tensor.dtype}; a bundle takes {_PORT_TYPES}: give torch.view_as_real({name}), and let "
            f"forward take torch.view_as_complex({name})"
        )


def _holds_tensors(value: Any) -> bool:
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, Tensor) or any(map(_holds_tensors, inside))


def _as_input(tensor: Tensor) -> Tensor:
    """An example on the CPU, floating-point values in float32."""
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.is_floating_point() else tensor


def _without_example(argument: str, module: nn.Module, known: Sequence[InputSpec]) -> list[InputSpec]:
    """The inputs of a module with an attribute ``inputs``, or the inputs of a bundle that it accepts."""
    if declared := _declared(module):
        return declared
    fitting = _accepted(module, known)
    if fitting and all(axis in STANDARD for spec in fitting for axis in spec.axes if isinstance(axis, str)):
        return fitting
    raise PosexportError(
        f"{argument} is a module alone, and posexport cannot tell its inputs: give an example tensor for every "
        "argument of forward, (module, {'input_ids': example, ...}) in a file, example_inputs= in Python"
    )


def _declared(module: nn.Module) -> list[InputSpec]:
    """The attribute ``inputs`` of a module, if it is what posexport's definitions have there; Keras has its tensors."""
    declared = getattr(module, "inputs", None)
    is_ours = isinstance(declared, list) and all(isinstance(spec, InputSpec) for spec in declared)
    return declared if is_ours else []  # type: ignore[return-value]


def _of_example(
    argument: str, module: nn.Module, tensors: Mapping[str, Tensor], axes: Any, fixed: Collection[tuple[str, int]]
) -> tuple[Discovered, list[InputSpec], list[str]]:
    """The inputs by the example ``tensors``, with their axes and remarks on both."""
    discovered, renamed = _discovered(argument, module, tensors, axes, fixed)
    length = _length(discovered.shapes, tensors)
    specs = [_spec(name, tensor, discovered.shapes[name], length) for name, tensor in tensors.items()]
    specs = [
        msgspec.structs.replace(spec, role="rows", rows_of=discovered.rows[spec.name], size=None, column_sizes=[])
        if spec.name in discovered.rows
        else spec
        for spec in specs
    ]
    # numbers that fit other inputs' sizes are drawn as the module declares them
    declared = {spec.name: spec for spec in _declared(module) if spec.role == "shapes"}
    specs = [msgspec.structs.replace(declared.get(spec.name, spec), axes=spec.axes) for spec in specs]
    specs, on_masks = with_padding_values(module, specs, tensors)
    specs, on_values = with_ranges(argument, module, specs, tensors)
    return discovered, specs, [*renamed, *discovered.remarks, *on_masks, *on_values]


def _discovered(
    argument: str, module: nn.Module, tensors: Mapping[str, Tensor], axes: Any, fixed: Collection[tuple[str, int]]
) -> tuple[Discovered, list[str]]:
    """The axes of the inputs, and a remark where the bundle has other names for axes than the user.

    ``fixed``: axes that do not vary in a graph, where the user did not name them.
    """
    axes = {} if axes is None else axes
    if not isinstance(axes, Mapping):
        raise PosexportError(f"{argument}: axes must map names of inputs to lists, got {type(axes).__name__}")
    if unknown := set(axes) - set(tensors):
        raise PosexportError(
            f"{argument}: axes name {sorted(unknown)}, which is not among the inputs {sorted(tensors)}"
        )
    shapes = {name: _axes(name, tensors[name], named) for name, named in axes.items() if named is not None}
    names = _standard_names(argument, [axis for shape in shapes.values() for axis in shape if isinstance(axis, str)])
    renamed = [f"axis {axis!r} is {standard} in the bundle" for axis, standard in names.items() if axis != standard]
    declared: dict[str, list[Axis]] = {
        name: [names[axis] if isinstance(axis, str) else axis for axis in shape] for name, shape in shapes.items()
    }
    complete = len(declared) == len(tensors) and set(names.values()) <= set(STANDARD)
    known = complete and ExampleCalls.of(argument, module, tensors, most=1).take_one(declared)
    discovered = Discovered(shapes=declared) if known else discover(argument, module, tensors, declared, fixed)
    return discovered, ["; ".join(renamed)] if renamed else []


def _accepted(module: nn.Module, known: Sequence[InputSpec]) -> list[InputSpec]:
    """The inputs among ``known`` that forward accepts, without a KV cache; none where it needs others."""
    parameters = inspect.signature(module.forward).parameters.values()
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    fitting = [_uncached(spec) for spec in known if spec.role not in CARRIED and (anything or spec.name in names)]
    needed = {p.name for p in parameters if p.name in names and p.default is p.empty}
    return fitting if needed <= {spec.name for spec in fitting} else []


def _uncached(spec: InputSpec) -> InputSpec:
    """A bundle's input as of an example tensor: all tokens are new, positions are ids, values are float32."""
    return msgspec.structs.replace(
        spec,
        dtype=MODEL_DTYPE.name if spec.role == "values" else spec.dtype,
        axes=[SEQUENCE if axis in PRESENT else axis for axis in spec.axes],
        role="tokens" if spec.role == "positions" else spec.role,
    )


def _axes(name: str, tensor: Tensor, axes: Any) -> list[Axis]:
    """The user's names of an input's axes, checked."""
    if isinstance(axes, str) or not all(_is_axis(axis) for axis in axes):
        raise PosexportError(
            f"input {name} has the axes {axes!r}; give a list of names like {BATCH} and whole numbers from 1 on"
        )
    if len(axes) != tensor.dim():
        raise PosexportError(f"input {name} has {tensor.dim()} axes, {len(axes)} are named: {list(axes)}")
    return list(axes)


def _standard_names(argument: str, axes: Sequence[str]) -> dict[str, str]:
    """The bundle's name of each axis: a name of `_AXES` stays, another becomes the most likely one."""
    names = {axis: axis if axis.endswith(_AXES) else _meaning(axis) for axis in dict.fromkeys(axes)}
    for axis, standard in names.items():
        same = [other for other, meaning in names.items() if meaning == standard]
        if len(same) > 1:
            raise PosexportError(
                f"{argument}: the axes {' and '.join(map(repr, same))} both look like {standard}; call each one of "
                f"{', '.join(_AXES)}, or give the size of {axis!r} as a number"
            )
    return names


_PORT_TYPES = " and ".join(dtype.name for dtype in DTYPES if dtype.in_bundles)


def _length(shapes: Mapping[str, list[Axis]], tensors: Mapping[str, Tensor]) -> int | None:
    """The number of tokens in the example's sequence; None where it has none."""
    return next((tensors[name].shape[axes.index(SEQUENCE)] for name, axes in shapes.items() if SEQUENCE in axes), None)


#: the rank of a mask of real numbers, [batch, tokens]
_OF_TOKENS = 2
#: the rank of ids in columns, [batch, columns]
_WITH_COLUMNS = 2


def _spec(name: str, tensor: Tensor, axes: list[Axis], length: int | None) -> InputSpec:
    if tensor.is_floating_point():
        of_tokens = "mask" in name and len(axes) == _OF_TOKENS and isinstance(axes[-1], str)
        is_mask = of_tokens and bool(((tensor == 0) | (tensor == 1)).all())
        return InputSpec(name=name, dtype=MODEL_DTYPE.name, axes=axes, role="mask" if is_mask else "values")
    is_bool = tensor.dtype == torch.bool
    if "mask" in name or is_bool:
        return InputSpec(name=name, dtype="bool" if is_bool else "int64", axes=axes, role="mask")
    if axes == [BATCH] and length is not None and counts_tokens(name, tensor, length):
        return InputSpec(name=name, dtype="int64", axes=axes, role="lengths")
    if int(tensor.min()) < 0:
        raise PosexportError(f"input {name}: the example must hold ids from 0 on, got {int(tensor.min())}")
    # the only bound that an example shows: the ids in it are in range
    columns = [int(n) + 1 for n in tensor.amax(0)] if len(axes) == _WITH_COLUMNS and isinstance(axes[-1], int) else []
    size = int(tensor.max()) + 1
    return InputSpec(name=name, dtype="int64", axes=axes, role="tokens", size=size, column_sizes=columns)


def _is_axis(axis: object) -> bool:
    return axis.isidentifier() if isinstance(axis, str) else type(axis) is int and axis >= 1


def _meaning(axis: str) -> str:
    """The most likely meaning of an axis with another name."""
    lower = axis.lower()
    if any(word in lower for word in ("enc", "mem", "source", "src", "key", "cross")):
        return ENCODER_SEQUENCE
    return BATCH if lower in ("b", "n", "bs", "bsz") or "batch" in lower else SEQUENCE
