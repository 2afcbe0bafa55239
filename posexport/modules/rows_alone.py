"""Whether rows of a batch change one another's outputs in a user's module, as in Nystrom attention."""

import torch

from posexport.base.spec import BATCH, InputSpec, OutputSpec
from posexport.modules.call import CallError, call
from posexport.modules.drawn_calls import DrawnCalls, Sizes
from posexport.sources.example import example

#: the difference that is no rounding of float64, relative to the largest element
_MIXED = 1e-7


def rows_mix(calls: DrawnCalls, sizes: Sizes, outputs: list[OutputSpec]) -> bool:
    """Whether a row alone has other outputs than in a batch; the module of ``calls`` is in float64."""
    if not calls.small or not any(BATCH in spec.axes for spec in calls.inputs):
        return False
    tensors = {n: t.double() if t.is_floating_point() else t for n, t in example(calls.inputs, sizes).items()}
    specs: list[InputSpec | OutputSpec] = [*calls.inputs, *outputs]
    axes = {spec.name: spec.axes.index(BATCH) for spec in specs if BATCH in spec.axes}
    try:
        whole = call(calls.module, tensors, torch.float64)
        for row in range(sizes[BATCH]):
            # one row can set what all rows share
            alone = {n: tensor.narrow(axes[n], row, 1) if n in axes else tensor for n, tensor in tensors.items()}
            for name, tensor in call(calls.module, alone, torch.float64).items():
                if name not in axes or not tensor.is_floating_point():
                    continue
                expected = whole[name].narrow(axes[name], row, 1)
                limit = _MIXED * float(expected.nan_to_num(neginf=0.0).abs().max())
                if tensor.shape == expected.shape and not torch.allclose(
                    tensor, expected, rtol=0, atol=limit, equal_nan=True
                ):
                    return True
    except CallError:  # a batch of one is proven, or refused, by itself
        return False
    return False
