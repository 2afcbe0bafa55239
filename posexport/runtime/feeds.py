"""From what a caller gives to what ONNX Runtime is fed: converted, completed, and refused with a sentence if wrong.

ONNX Runtime itself would take much of it: a mask of another length broadcasts, an id out of range reads another row or,
on CUDA, whatever lies in memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.spec import SEQUENCE, Axis, Envelope, InputSpec

Array = NDArray[Any]


def prepare(given: Mapping[str, Any], specs: Sequence[InputSpec], envelope: Envelope) -> dict[str, Array]:
    """Arrays for every input of ``specs``, in their dtype.

    A mask that is not given keeps every token; token types and flags that are not given are 0. Raises PosexportError
    for unknown or missing names, a wrong dtype or rank, sizes that do not agree, an empty batch or sequence, a length
    outside ``envelope``, ids out of range, a mask of other values than 0 and 1, and numbers that are not finite.
    """
    names = [spec.name for spec in specs]
    if unknown := [name for name in given if name not in names]:
        raise PosexportError(f"unknown input {', '.join(map(str, unknown))}; this bundle takes {', '.join(names)}")
    arrays = {spec.name: _array(spec, given[spec.name]) for spec in specs if given.get(spec.name) is not None}
    sizes = _sizes(arrays, specs)
    lacking = [spec for spec in specs if spec.name not in arrays]
    missing = [spec.name for spec in lacking if spec.role not in ("mask", "types", "flags")]
    # a default takes its size from another input
    missing = missing or [spec.name for spec in lacking if not all(isinstance(a, int) or a in sizes for a in spec.axes)]
    if missing:
        raise PosexportError(f"missing input {', '.join(missing)}; this bundle takes {', '.join(names)}")
    _check_length(sizes, envelope)
    for spec in specs:
        if spec.name not in arrays:
            shape = [axis if isinstance(axis, int) else sizes[axis][0] for axis in spec.axes]
            arrays[spec.name] = np.full(shape, 1 if spec.role == "mask" else 0, dtype=spec.dtype)
        else:
            _check_values(spec, arrays[spec.name])
            arrays[spec.name] = np.ascontiguousarray(arrays[spec.name], dtype=spec.dtype)
    return {name: arrays[name] for name in names}


def _array(spec: InputSpec, value: Any) -> Array:
    """``value`` as an array of the right kind and rank; its numbers are not looked at."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as err:
        raise PosexportError(
            f"{spec.name} is not an array: its rows differ in length or hold no numbers; pad them to one length"
        ) from err
    needed = list(spec.axes)
    if array.ndim != len(needed):
        raise PosexportError(f"{spec.name} needs the axes {_listed(needed)}, got an array of shape {list(array.shape)}")
    if array.size == 0 and array.dtype == np.float64:  # the dtype NumPy gives an empty list
        array = array.astype(spec.dtype)
    kinds, wanted = {"values": ("fiu", "real numbers"), "mask": ("iub", "0 and 1 as integers")}.get(
        "mask" if spec.role == "flags" else spec.role, ("iu", "integers")
    )
    if array.dtype.kind not in kinds:
        raise PosexportError(f"{spec.name} must hold {wanted}, got {array.dtype}; convert it to {spec.dtype}")
    return array


def _sizes(arrays: Mapping[str, Array], specs: Sequence[InputSpec]) -> dict[str, tuple[int, str]]:
    """Every named axis with its size and the input that set it."""
    sizes: dict[str, tuple[int, str]] = {}
    for spec in specs:
        if spec.name not in arrays:
            continue
        for axis, size in zip(spec.axes, arrays[spec.name].shape, strict=True):
            if isinstance(axis, int):
                if size != axis:
                    shape = list(arrays[spec.name].shape)
                    raise PosexportError(
                        f"{spec.name} needs the axes {_listed(spec.axes)}, got an array of shape {shape}"
                    )
                continue
            if size == 0:
                raise PosexportError(f"{spec.name} has {axis} 0; give at least 1")
            known, setter = sizes.setdefault(axis, (size, spec.name))
            if known != size:
                raise PosexportError(f"{spec.name} has {axis} {size}, {setter} has {known}; give both the same")
    return sizes


def _check_length(sizes: Mapping[str, tuple[int, str]], envelope: Envelope) -> None:
    for axis, least in envelope.smallest.items():
        if axis in sizes and sizes[axis][0] < least:
            size, name = sizes[axis]
            raise PosexportError(f"{name} has {axis} {size}, this bundle needs at least {least}; enlarge the image")
    if SEQUENCE not in sizes:
        return
    length, name = sizes[SEQUENCE]
    if length < envelope.minimum:
        raise PosexportError(f"{name} has {SEQUENCE} {length}, this bundle needs at least {envelope.minimum}; pad it")
    if envelope.limit is not None and length > envelope.limit:
        raise PosexportError(f"{name} has {SEQUENCE} {length}, {limit_sentence(envelope)}; shorten it")


def limit_sentence(envelope: Envelope) -> str:
    """What the bundle's limit is and why."""
    trained = "" if envelope.trained is None else f", trained length {envelope.trained}"
    return f"this bundle takes at most {envelope.limit} (made with --beyond {envelope.beyond}{trained})"


def _check_values(spec: InputSpec, array: Array) -> None:
    if spec.role == "values":
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
            bad, needed = ~np.isfinite(array.astype(spec.dtype)), f"finite numbers of {spec.dtype}"
    elif spec.role in ("mask", "flags"):
        needed = "1 for a token and 0 for padding" if spec.role == "mask" else "1 for a marked token and 0 for others"
        bad = (array != 0) & (array != 1)
    else:
        most = np.iinfo(np.int64).max if spec.size is None else spec.size - 1
        bad, needed = (array < 0) | (array > most), f"ids from 0 to {most}"
    if bad.any():
        where = np.unravel_index(int(np.argmax(bad)), array.shape)
        raise PosexportError(f"{spec.name} holds {array[where]} at {[int(i) for i in where]}; it takes {needed}")


def _listed(axes: Sequence[Axis]) -> str:
    return f"[{', '.join(map(str, axes))}]"
