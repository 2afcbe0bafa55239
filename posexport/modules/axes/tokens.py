"""How many places of an image or of a sound make a token, by what linear layers and normalisations see."""

import math
from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor, nn

from posexport.spec import BATCH


def elements_per_token(
    module: nn.Module, run: Callable[[dict[str, int]], Any], sizes: dict[str, int], axes: Collection[str]
) -> float:
    """How many places of ``axes`` make a token, for estimates of memory; ``run`` calls ``module`` at ``sizes``.

    Tokens are the most vectors of a row that a linear layer or a normalisation gets.
    """
    counts = [1]

    def seen(part: nn.Module, inputs: tuple[Any, ...]) -> None:
        del part
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].dim() > 1:
            counts.append(inputs[0].numel() // max(1, inputs[0].shape[-1] * sizes.get(BATCH, 1)))

    layers = [part for part in module.modules() if isinstance(part, nn.Linear | nn.LayerNorm)]
    hooks = [part.register_forward_pre_hook(seen) for part in layers]
    try:
        run(sizes)
    finally:
        for hook in hooks:
            hook.remove()
    return math.prod(sizes[axis] for axis in axes) / max(counts) if axes else 1.0
