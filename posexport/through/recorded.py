"""The attention and the states that one call of a causal language model shows."""

import torch

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
    ids_1T = torch.zeros((1, length), dtype=torch.int64)
    tensors = {spec.name: ids_1T if spec.role == "tokens" else torch.ones_like(ids_1T) for spec in user.inputs}
    with torch.no_grad(), noting() as layers, states.keeping(user.module) as kept:
        user.module(**tensors)
    return layers, kept
