"""The attention and the states that one call of a causal language model shows."""

import torch

from posexport.base.spec import SEQUENCE
from posexport.modules.user_module import UserModule
from posexport.nn.layer_states import States
from posexport.through import states
from posexport.through.attention import noting
from posexport.through.planned_call import Layer

#: sequence length of the call
_NOTED = 5


def recorded(user: UserModule, longest: int | None) -> tuple[list[Layer], States]:
    """The attention layers of one forward pass, in call order, and the states after it.

    ``longest``: the most tokens that it takes; None: any number.
    """
    length = min(_NOTED, longest or _NOTED)
    tensors = {}
    for spec in user.inputs:
        shape = [axis if isinstance(axis, int) else {SEQUENCE: length}.get(axis, 1) for axis in spec.axes]
        fill = torch.zeros if spec.role in ("tokens", "values") else torch.ones
        if spec.role != "blocks":  # of images: none
            tensors[spec.name] = fill(shape, dtype=getattr(torch, spec.dtype))
    with torch.no_grad(), noting() as layers, states.keeping(user.module) as kept:
        user.module(**tensors)
    return layers, kept
