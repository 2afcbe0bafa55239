"""Random values of inputs by their specs, nothing padded: to trace, to prove and to profile with. Imports no torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.spec import InputSpec


def example_input(spec: InputSpec, shape: Sequence[int], rng: np.random.Generator) -> NDArray[Any]:
    """An array of ``shape``: random ids or N(0, 1) values; nothing is masked, no flag set, no position given."""
    if spec.role in ("values", "cache"):
        return rng.standard_normal(shape).astype(spec.dtype)
    constants = {"mask": 1, "flags": 0, "positions": -1}
    if spec.role in constants:
        return np.full(shape, constants[spec.role], spec.dtype)
    return random_ids(spec, shape, rng)


def random_ids(spec: InputSpec, shape: Sequence[int], rng: np.random.Generator) -> NDArray[np.int64]:
    """Random ids below the input's size; tokens are never the padding id."""
    if spec.size is None or spec.size < 1:
        raise PosexportError(f"input {spec.name} holds ids but its size is {spec.size}: say how many ids there are")
    if spec.role == "types" or spec.size == 1:
        return rng.integers(0, spec.size, shape)
    ids = rng.integers(0, spec.size - 1, shape)
    return np.where(ids >= spec.padding, ids + 1, ids) if 0 <= spec.padding < spec.size else ids
