"""Example inputs of chosen sizes, to trace a model with or to see what it gives."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from posexport.base.example_inputs import example_input, with_sizes
from posexport.base.spec import InputSpec
from posexport.errors import PosexportError

#: Sizes to trace at: different from one another, and none of them 0 or 1, which the tracer would take for constants.
_TRACED_SIZES = (3, 11, 7, 13, 5, 4)


def axis_sizes(inputs: Sequence[InputSpec], traced: Mapping[str, int] | None = None) -> dict[str, int]:
    """A size for every named axis to trace at; ``traced``: those that are chosen."""
    names = dict.fromkeys(axis for spec in inputs for axis in spec.axes if isinstance(axis, str))
    if len(names) > len(_TRACED_SIZES):
        raise PosexportError(
            f"a model may have {len(_TRACED_SIZES)} dynamic axes, got {len(names)}: {', '.join(names)}"
        )
    return {name: (traced or {}).get(name, size) for name, size in zip(names, _TRACED_SIZES, strict=False)}


def example(inputs: list[InputSpec], sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    """Seeded inputs of ``sizes``, without padding."""
    rng = np.random.default_rng(0)
    shapes = {spec.name: [sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes] for spec in inputs}
    arrays = with_sizes(inputs, {spec.name: example_input(spec, shapes[spec.name], rng) for spec in inputs}, rng)
    # drawn integers are int64
    narrow = {spec.name for spec in inputs if spec.dtype == "int32"}
    return {name: torch.from_numpy(a.astype(np.int32) if name in narrow else a) for name, a in arrays.items()}


def scaled(spec: InputSpec, tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Values of an input times ``factor``, but ids in columns."""
    changed = tensor * factor
    return torch.where(torch.tensor(spec.column_sizes) > 0, tensor, changed) if spec.column_sizes else changed
