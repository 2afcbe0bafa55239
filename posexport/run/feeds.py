"""Converts and checks the inputs of a call, and adds the defaults of optional inputs.

ONNX Runtime alone accepts many wrong inputs: a mask of another length broadcasts, and an id out of range reads another
row or, on CUDA, arbitrary memory. One file of 400 lines, since one call goes through all of its checks in order.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.base.example_inputs import PROMPTS
from posexport.base.spec import (
    BATCH,
    CAPACITY,
    CARRIED,
    ENCODER_SEQUENCE,
    NUM_LOGITS,
    PAST,
    PATCHES,
    SAMPLES,
    SEQUENCE,
    TOTAL,
    Axis,
    InputSpec,
    LengthContract,
    neutral,
)
from posexport.base.targets.dtypes import BFLOAT16, BY_NAME, INT8
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import Manifest
from posexport.run.tokenizer.fits import sentence

if TYPE_CHECKING:
    from tokenizers import Tokenizer


Row = TypeVar("Row", bound=Any)
#: roles of inputs that have no default
_NEEDED = ("tokens", "numbers", "values", "grids", "boxes", "points", "prompts", "places", "shapes", "indices", "rows")


def rows_of(manifest: Manifest, tokenizer: "Tokenizer") -> int | None:
    """The number of rows of the embedding if the tokenizer has ids beyond them, else None: no check is needed."""
    rows = next((spec.size for spec in manifest.inputs if spec.role == "tokens"), None)
    if rows is None:
        return None
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    return rows if highest >= rows else None


def checked(encoded: Sequence[Row], rows: int | None, tokenizer: "Tokenizer") -> list[Row]:
    """Returns ``encoded``; PosexportError for an id of ``rows`` or more. ``rows`` None: not checked."""
    if rows is not None:
        for encoding in encoded:
            odd = next((number for number in encoding.ids if number >= rows), None)
            if odd is not None:
                raise PosexportError(sentence(tokenizer.id_to_token(odd), odd, rows))
    return list(encoded)


Array = NDArray[Any]


def prepare(inputs: Mapping[str, Any], specs: Sequence[InputSpec], limits: LengthContract) -> dict[str, Array]:
    """Arrays for every input of ``specs``, in its dtype.

    By default a mask and lengths have no padding, token types and flags are 0, and a cache is empty.

    Raises:
        PosexportError: unknown or missing names, a wrong dtype or rank, sizes that disagree, an empty batch or
            sequence, a length outside ``limits``, ids out of range, a mask with values other than 0 and 1, infinity or
            NaN, a cache that lacks a layer, or a decoder's mask that does not cover past and new tokens or, without
            states, has padding between tokens.
    """
    # the arrays of the caller, and the size of every axis
    names = [spec.name for spec in specs]
    if unknown := [name for name in inputs if name not in names]:
        raise PosexportError(f"unknown input {', '.join(map(str, unknown))}; this bundle takes {_named(specs)}")
    arrays = {spec.name: _array(spec, inputs[spec.name]) for spec in specs if inputs.get(spec.name) is not None}
    sizes = _sizes(arrays, specs)
    _check_cache(arrays, specs)
    _complete(sizes, specs)
    # required inputs, and inputs with a default of unknown size
    lacking = [spec for spec in specs if spec.name not in arrays]
    missing = [spec.name for spec in lacking if spec.role in _NEEDED]
    missing = missing or [spec.name for spec in lacking if not all(isinstance(a, int) or a in sizes for a in spec.axes)]
    if missing:
        raise PosexportError(f"missing input {', '.join(missing)}; this bundle takes {_named(specs)}")
    _check_length(sizes, limits)
    reals = (limits.min_length, sizes.get(SEQUENCE, (0, ""))[0])
    keeps_states = any(spec.role == "state" for spec in specs)  # their proof has padding between tokens
    for spec in specs:
        if spec.name not in arrays:
            shape = [axis if isinstance(axis, int) else sizes[axis][0] for axis in spec.axes]
            arrays[spec.name] = np.full(shape, neutral(spec, reals[1]), dtype=BY_NAME[spec.dtype].numpy)
        else:
            if isinstance(spec.rows_of, str):
                spec = msgspec.structs.replace(spec, size=sizes[spec.rows_of][0])
            _check_values(spec, arrays[spec.name], reals)
            if spec.role == "lengths" and limits.needs_whole_row:
                _check_whole_row(spec, arrays[spec.name], reals[1])
            if spec.role == "mask" and spec.axes[-1] == TOTAL and not keeps_states:
                _check_gaps(spec, arrays[spec.name])
            arrays[spec.name] = np.ascontiguousarray(arrays[spec.name], dtype=BY_NAME[spec.dtype].numpy)
    if PATCHES in sizes:
        _check_grids(arrays, specs, sizes[PATCHES])
    return {name: arrays[name] for name in names}


def number_of_logits(value: Any) -> Array:
    """The feed of `NUM_LOGITS`; PosexportError for anything but an integer from 0 on."""
    number = np.asarray(value)
    if number.size != 1 or number.dtype.kind not in "iu" or number.item() < 0:
        raise PosexportError(
            f"{NUM_LOGITS} takes the number of a row's last tokens whose logits are computed, 0 for all, "
            f"got {value!r:.60}"
        )
    return number.reshape(()).astype(np.int64)


def _array(spec: InputSpec, value: Any) -> Array:
    """``value`` as an array with a suitable dtype and rank; elements are not checked."""
    try:
        array = np.asarray([*value] if isinstance(value, Iterator) else value)
    except (ValueError, TypeError, OverflowError) as err:
        raise PosexportError(
            f"{spec.name} is not an array: its rows differ in length or hold no numbers; pad them to one length"
        ) from err
    if array.ndim != len(spec.axes):
        raise PosexportError(
            f"{spec.name} needs the axes {_listed(spec.axes)}, got an array of shape {list(array.shape)}"
        )
    if array.size == 0 and array.dtype == np.float64:  # the dtype NumPy gives an empty list
        array = array.astype(BY_NAME[spec.dtype].numpy)
    rounded = spec.dtype == INT8.name
    kinds, needed = {
        "values": ("fiu", "real numbers"),
        "points": ("fiu", "points in pixels"),
        "boxes": ("iu" if spec.dtype.startswith("int") else "fiu", "edges of boxes"),
        **dict.fromkeys(CARRIED, ("i", "integers") if rounded else ("f", "real numbers")),
        "mask": ("fiub", "0 and 1") if spec.dtype.startswith("float") else ("iub", "0 and 1 as integers"),
    }.get("mask" if spec.role in ("flags", "blocks") else spec.role, ("iu", "integers"))
    is_real = array.dtype.kind == "f" or array.dtype.name == BFLOAT16.name
    if spec.role in CARRIED and is_real and (rounded or array.dtype.itemsize < BY_NAME[spec.dtype].numpy.itemsize):
        raise PosexportError(f"{spec.name} holds {array.dtype}, this bundle's cache is {spec.dtype}; give what it gave")
    if array.dtype.kind not in kinds and not (is_real and "f" in kinds):
        raise PosexportError(f"{spec.name} must hold {needed}, got {array.dtype}; convert it to {spec.dtype}")
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
            if size == 0 and axis != PAST:
                raise PosexportError(f"{spec.name} has {axis} 0; give at least 1")
            known, setter = sizes.setdefault(axis, (size, spec.name))
            if known != size:
                raise PosexportError(f"{spec.name} has {axis} {size}, {setter} has {known}; give both the same")
    return sizes


def _check_cache(arrays: Mapping[str, Array], specs: Sequence[InputSpec]) -> None:
    names = [spec.name for spec in specs if spec.role in CARRIED]
    lacking = [name for name in names if name not in arrays]
    if lacking and len(lacking) < len(names):
        raise PosexportError(
            f"missing input {lacking[0]}: {len(names) - len(lacking)} of {len(names)} cache inputs are given; give "
            f"{names[0]} to {names[-1]}, or none for an empty cache"
        )


def _complete(sizes: dict[str, tuple[int, str]], specs: Sequence[InputSpec]) -> None:
    """Add the sizes of an empty cache, and the total length of past and new tokens."""
    axes = {axis for spec in specs for axis in spec.axes}
    if PAST in axes:
        sizes.setdefault(PAST, (0, "the empty cache"))
    if CAPACITY in axes and SEQUENCE in sizes:
        new, setter = sizes[SEQUENCE]
        total, mask = sizes.setdefault(TOTAL, (new, setter))  # without a mask there is no past
        slots, cache = sizes.setdefault(CAPACITY, (total, "the empty cache"))
        if not new <= total <= slots:
            raise PosexportError(
                f"{mask} has {TOTAL} {total}, but there are {new} new tokens and {cache} has {slots} slots; give a "
                "mask over past and new tokens, and a cache with room for both"
            )
    if TOTAL not in axes or SEQUENCE not in sizes:
        return
    if PAST not in sizes:  # of states alone the mask says how many tokens there were
        sizes.setdefault(TOTAL, sizes[SEQUENCE])
        return
    past, new = sizes[PAST][0], sizes[SEQUENCE][0]
    total, setter = sizes.setdefault(TOTAL, (past + new, sizes[SEQUENCE][1]))
    if total != past + new:
        raise PosexportError(
            f"{setter} has {TOTAL} {total}, but {PAST} {past} and {SEQUENCE} {new} make {past + new}; give a mask over "
            "past and new tokens"
        )


def _check_length(sizes: Mapping[str, tuple[int, str]], limits: LengthContract) -> None:
    _check_axes(sizes, limits)
    far, name = sizes.get(ENCODER_SEQUENCE, (0, ""))
    if limits.max_length is not None and ENCODER_SEQUENCE in limits.limited_axes and far > limits.max_length:
        raise PosexportError(f"{name} has {ENCODER_SEQUENCE} {far}, {limit_sentence(limits)}; shorten it")
    if SEQUENCE not in sizes:
        return
    length, name = sizes[SEQUENCE]
    past = sizes[TOTAL][0] - length if TOTAL in sizes else 0
    if length < limits.min_length:
        raise PosexportError(f"{name} has {SEQUENCE} {length}, this bundle needs at least {limits.min_length}; pad it")
    if limits.max_length is not None and length + past > limits.max_length:
        behind = f" behind {past} past tokens" if past else ""
        raise PosexportError(f"{name} has {SEQUENCE} {length}{behind}, {limit_sentence(limits)}; shorten it")


def _check_axes(sizes: Mapping[str, tuple[int, str]], limits: LengthContract) -> None:
    """Check the axes with a minimum, a maximum or a step (`LengthContract`)."""
    for axis, least in limits.min_sizes.items():
        if axis in sizes and sizes[axis][0] < least:
            size, name = sizes[axis]
            how = "pad it" if axis in (SAMPLES, ENCODER_SEQUENCE) else "enlarge the image"
            raise PosexportError(f"{name} has {axis} {size}, this bundle needs at least {least}; {how}")
    for axis, most in limits.max_sizes.items():
        if axis in sizes and sizes[axis][0] > most:
            size, name = sizes[axis]
            raise PosexportError(f"{name} has {axis} {size}, this bundle takes at most {most}; shorten it")
    for axis, step in limits.size_steps.items():
        if axis in sizes and sizes[axis][0] % step:
            size, name = sizes[axis]
            raise PosexportError(f"{name} has {axis} {size}, this bundle takes multiples of {step}; pad or cut it")
    for axis, divisor in limits.multiple_of.items():
        if axis in sizes and divisor in sizes and sizes[axis][0] % sizes[divisor][0]:
            (size, name), (share, other) = sizes[axis], sizes[divisor]
            raise PosexportError(
                f"{name} has {axis} {size}, {other} has {divisor} {share}; give a multiple of {share}, as many rows of "
                f"{name} to each of {other}"
            )


def limit_sentence(limits: LengthContract) -> str:
    """The bundle's maximum length and the reason for it, as part of a message."""
    trained = "" if limits.trained_length is None else f", trained length {limits.trained_length}"
    return f"this bundle takes at most {limits.max_length} (made with --beyond {limits.beyond}{trained})"


def _check_grids(arrays: Mapping[str, Array], specs: Sequence[InputSpec], patches: tuple[int, str]) -> None:
    """Check that grids add up to the number of patches, or fit into a row, and that their sides are whole tokens."""
    number, name = patches
    for spec in specs:
        if spec.role != "grids":
            continue
        grids, side = arrays[spec.name], spec.size or 1
        bad = (grids < 1).any(1) | (grids[:, 1:] % side != 0).any(1)
        if bad.any():
            index = int(np.argmax(bad))
            raise PosexportError(
                f"{spec.name} holds {grids[index].tolist()} at {[index]}; it takes frames, rows and columns of "
                f"patches, from 1 on, rows and columns in multiples of {side}"
            )
        if BATCH in spec.axes:
            if (over := (grids[:, 0] != 1) | (grids.prod(1) > number)).any():
                row = int(np.argmax(over))
                raise PosexportError(
                    f"{spec.name} holds {grids[row].tolist()} at {[row]}, and {name} has {number} patches a row; it "
                    "takes one frame of at most as many patches"
                )
        elif (total := int(grids.prod(1).sum())) != number:
            raise PosexportError(
                f"{spec.name} has {total} patches together, {name} has {PATCHES} {number}; give both the same"
            )


#: role, value of padding -> the elements that a mask takes, for a message
_MARKS = {("mask", 0): "1 for a token and 0 for padding", ("mask", 1): "0 for a token and 1 for padding"}


def _check_values(spec: InputSpec, array: Array, reals: tuple[int, int]) -> None:
    """Check the elements of ``array``; ``reals``: the least and largest number of tokens in a row."""
    if spec.role == "grids":
        return
    if spec.role in CARRIED and spec.dtype == INT8.name:
        bad, needed = array.astype(INT8.numpy) != array, f"numbers of {spec.dtype}"
    elif spec.role in ("values", *CARRIED):
        with np.errstate(over="ignore"):  # values beyond the dtype become infinite, and are refused
            bad, needed = ~np.isfinite(array.astype(BY_NAME[spec.dtype].numpy)), f"finite numbers of {spec.dtype}"
    elif spec.role in ("mask", "flags", "blocks"):
        needed = _MARKS.get((spec.role, spec.padding), "1 for a marked token and 0 for others")
        bad = (array != 0) & (array != 1)
    elif spec.role == "lengths":
        bad, needed = (array < reals[0]) | (array > reals[1]), f"lengths from {reals[0]} to {reals[1]}, the sequence's"
    elif spec.role == "indices":
        bad, needed = _bad_indices(array, reals[1])
    elif spec.role == "numbers":
        bad, needed = array < 0, "integers from 0 on"
    elif spec.role in _BAD:
        bad, needed = _BAD[spec.role](spec, array)
    else:
        bad, needed = _bad_ids(spec, array)
    if bad.any():
        where = np.unravel_index(int(np.argmax(bad)), array.shape)
        raise PosexportError(f"{spec.name} holds {array[where]} at {[int(i) for i in where]}; it takes {needed}")


def _check_whole_row(spec: InputSpec, lengths: Array, length: int) -> None:
    """The model counts the columns of its mask by the longest row."""
    if (longest := int(lengths.max())) < length:
        raise PosexportError(
            f"{spec.name} has no row of {length}, the sequence's length; this bundle needs one row without padding: "
            f"cut the other inputs to {longest}, the longest row's"
        )


def _check_gaps(spec: InputSpec, mask: Array) -> None:
    """Positions are counted by the mask, distances by slots: padding between tokens would make them disagree."""
    starts = np.diff(mask.astype(np.int8), axis=1, prepend=0) == 1
    if (gaps := starts.sum(1) > 1).any():
        raise PosexportError(
            f"{spec.name} has padding between tokens in row {int(np.argmax(gaps))}; pad before the first token or "
            "after the last, and on the left where tokens are to follow"
        )


def _bad_ids(spec: InputSpec, array: Array) -> tuple[NDArray[np.bool_], str]:
    """Ids or positions that are out of range, and the values that are accepted."""
    least = spec.least if isinstance(spec.least, int) else 0
    if spec.column_sizes:
        return (array < least) | (array >= spec.column_sizes), f"ids below {spec.column_sizes}, one for each column"
    most = np.iinfo(np.int64).max if spec.size is None else spec.size - 1
    if spec.role == "positions":
        return (array < -1) | (array > most), f"positions from 0 to {most}, or -1 for those that the mask counts"
    return (array < least) | (array > most), f"ids from {least} to {most}"


def _bad_boxes(spec: InputSpec, array: Array) -> tuple[NDArray[np.bool_], str]:
    """Edges that are out of range or on the wrong side, and the values that are accepted."""
    most = (spec.size or 1) - spec.dtype.startswith("int")
    bad = ~((array >= 0) & (array <= most))
    bad[..., 2:] |= array[..., 2:] < array[..., :2]
    return bad, f"left, top, right and bottom from 0 to {most}, the right not left of the left, the bottom not above"


def _bad_points(spec: InputSpec, array: Array) -> tuple[NDArray[np.bool_], str]:
    """Points outside the image, and the values that are accepted."""
    bad = ~((array >= 0) & (array <= spec.size) | (array == PROMPTS[-1]))
    return bad, f"pixels from 0 to {spec.size} of the prepared image, or {PROMPTS[-1]} for padding"


def _bad_prompts(_: InputSpec, array: Array) -> tuple[NDArray[np.bool_], str]:
    """Labels of points that do not exist, and the values that are accepted."""
    return ~np.isin(array, PROMPTS), "1 for a point of the object, 0 for another, -1 for none and -10 for padding"


def _bad_places(spec: InputSpec, array: Array) -> tuple[NDArray[np.bool_], str]:
    """Columns and rows that are out of range, or pairs with only one -1, and the values that are accepted."""
    padding = array == -1
    bad = (array < -1) | (array >= spec.column_sizes) | (padding != padding.all(-1, keepdims=True))
    return bad, f"columns and rows below {spec.column_sizes}, or -1 and -1 for padding"


def _bad_shapes(spec: InputSpec, array: Array) -> tuple[NDArray[np.bool_], str]:
    """Numbers of rows and columns with more patches than the input has, and the values that are accepted."""
    bad = (array < 1) | (array.prod(-1, keepdims=True) > spec.size)
    return bad, f"rows and columns from 1 on, of at most {spec.size} patches together"


def _bad_indices(array: Array, tokens: int) -> tuple[NDArray[np.bool_], str]:
    """Indices beyond the tokens of a row, or after a -1, and the values that are accepted."""
    bad = (array < -1) | (array >= tokens)
    bad[:, 0] |= array[:, 0] < 0
    bad[:, 1:] |= (array[:, 1:] >= 0) & (array[:, :-1] < 0)
    return bad, f"indices of tokens below {tokens}, at least one in each row, and -1 behind them"


#: role -> returns which elements are wrong, and the values that are accepted
_BAD = {
    "boxes": _bad_boxes,
    "points": _bad_points,
    "prompts": _bad_prompts,
    "places": _bad_places,
    "shapes": _bad_shapes,
}


def _named(specs: Sequence[InputSpec]) -> str:
    """The names of the inputs for a message; a cache by its first and last."""
    names = [spec.name for spec in specs if spec.role not in CARRIED]
    cache = [spec.name for spec in specs if spec.role in CARRIED]
    return ", ".join([*names, *([f"{cache[0]} to {cache[-1]}"] if cache else [])])


def _listed(axes: Sequence[Axis]) -> str:
    return f"[{', '.join(map(str, axes))}]"
