"""``--static``: one size for axes of a source."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from posexport.base.options.check import check_choice
from posexport.base.spec import BATCH, HEIGHT, SEQUENCE, WIDTH, Limits
from posexport.errors import PosexportError
from posexport.sources.source import Source

_AXES = (BATCH, SEQUENCE, HEIGHT, WIDTH)
#: roles of inputs with a known padding value
_PADDED = frozenset({"tokens", "types", "mask", "flags"})


def sizes_of(static: Mapping[str, Any] | Sequence[str]) -> dict[str, int]:
    """The size of each axis, from a mapping or from texts like ``batch_size=1,sequence_length=128``.

    Raises:
        PosexportError: a text has another form, an axis is none of those that may be static, or a size is no number.
    """
    pairs = static if isinstance(static, Mapping) else dict(_pair(pair) for text in static for pair in text.split(","))
    sizes = {}
    for axis, size in pairs.items():
        check_choice("an axis of --static", axis, _AXES)
        if not str(size).isdecimal() or int(size) < 1:
            raise PosexportError(f"--static {axis} must be a number from 1 on, got {size!r:.60}")
        sizes[axis] = int(size)
    if (HEIGHT in sizes) != (WIDTH in sizes):
        raise PosexportError("--static takes height and width together, got one of them")
    return sizes


def _pair(text: str) -> tuple[str, str]:
    axis, equals, size = text.strip().partition("=")
    if not equals:
        raise PosexportError(f"--static takes AXIS=SIZE, such as sequence_length=128, got {text!r:.60}")
    return axis, size


def with_static_sizes(source: Source, sizes: Mapping[str, int]) -> Source:
    """The source with the limits of a graph of these sizes.

    Raises:
        PosexportError: it is a decoder with a cache or several graphs, lacks the axis, does not take the size, or
            shorter rows cannot be padded.
    """
    if not sizes:
        return source
    name, limits = source.name, source.limits
    _check_graph("--static", source)
    has = {str(axis) for spec in source.inputs for axis in spec.axes}
    if lacking := [axis for axis in sizes if axis not in has]:
        known = ", ".join(axis for axis in _AXES if axis in has)
        raise PosexportError(f"--static {lacking[0]}: no input of {name} has this axis; it has {known}")
    if SEQUENCE in sizes:
        limits = _with_length(source, sizes[SEQUENCE])
    if HEIGHT in sizes:
        limits = _with_image(source, sizes)
    return msgspec.structs.replace(source, limits=limits)


def _check_graph(option: str, source: Source) -> None:
    if source.parts or source.limits.kv_cache:
        files = ", ".join(graph.file for graph in source.part_specs)
        what = f"several graphs ({files})" if source.parts else "a KV cache, whose length varies"
        raise PosexportError(
            f"{option} is for models of one graph without a cache; {source.name} has {what}: leave it out"
        )


def _with_length(source: Source, length: int) -> Limits:
    limits, name = source.limits, source.name
    most, step = limits.max_length, limits.size_steps.get(SEQUENCE, 1)
    if length < limits.min_length or (most is not None and length > most) or length % step:
        takes = f"from {limits.min_length}" + ("" if most is None else f" to {most}")
        steps = "" if step == 1 else f", in multiples of {step}"
        raise PosexportError(f"--static {SEQUENCE}={length}: {name} takes lengths {takes}{steps}")
    roles = {spec.role for spec in source.inputs if SEQUENCE in spec.axes}
    if "mask" not in roles or not roles <= _PADDED or not source.promises.padding_invariant:
        raise PosexportError(
            f"--static {SEQUENCE} pads shorter rows, which {name} does not have a mask for, or is not known to ignore; "
            "leave it out, or give the other axes"
        )
    inside = sorted({length, *(boundary for boundary in limits.boundaries if boundary <= length)})
    axes = sorted({*limits.limited_axes, SEQUENCE})
    return msgspec.structs.replace(limits, max_length=length, boundaries=inside, limited_axes=axes)


def _with_image(source: Source, sizes: Mapping[str, int]) -> Limits:
    limits, image = source.limits, {axis: sizes[axis] for axis in (HEIGHT, WIDTH)}
    for axis, size in image.items():
        least, most = limits.min_sizes.get(axis, 1), limits.max_sizes.get(axis, size)
        step = limits.size_steps.get(axis, 1)
        if not least <= size <= most or size % step:
            raise PosexportError(
                f"--static {axis}={size}: {source.name} takes {least} pixels and more, in multiples of {step}"
            )
    return msgspec.structs.replace(
        limits,
        min_sizes={**limits.min_sizes, **image},
        max_sizes={**limits.max_sizes, **image},
        proof_image_sizes=[(sizes[HEIGHT], sizes[WIDTH])],
    )


def with_int32(source: Source) -> Source:
    """The source with int32 in place of int64 inputs.

    Raises:
        PosexportError: it is a decoder with a cache or several graphs.
    """
    _check_graph("--int32", source)
    inputs = [msgspec.structs.replace(spec, dtype="int32") if spec.dtype == "int64" else spec for spec in source.inputs]
    return msgspec.structs.replace(source, inputs=inputs)
