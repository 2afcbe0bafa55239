"""`nn.LSTM`, `nn.GRU` and `nn.RNN` with any states and directions, as ONNX's operators.

PyTorch's exporter unrolls the traced number of tokens, or fixes the batch size where states are arguments.

Issue: none known. Seen in 2.13.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from posexport.nn.recurrent_node import layer_node

#: PyTorch's functions: ONNX's operator and its activation, where the operator has another default
_KINDS: dict[Callable[..., Any], tuple[str, str]] = {
    torch.lstm: ("LSTM", ""),
    torch.gru: ("GRU", ""),
    torch.rnn_tanh: ("RNN", ""),
    torch.rnn_relu: ("RNN", "Relu"),
}
#: how many arguments a call with padded rows has
_ARGUMENTS = 9


def recurrent(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor, ...] | None:
    """What a layer returns; None for other functions, packed sequences and projections."""
    # a call with packed sequences has a list of parameters in the place of the flag
    if func not in _KINDS or kwargs or len(args) != _ARGUMENTS or not isinstance(args[3], bool):
        return None
    x, before, parameters, biased, layers, _, _, both_ways, batch_first = args
    states = [before] if isinstance(before, Tensor) else list(before)
    if states[0].shape[2] != states[-1].shape[2]:  # an LSTM with projections
        return None
    kind, activation = _KINDS[func]
    directions, each = 1 + both_ways, 4 if biased else 2
    x, after = x.transpose(0, 1) if batch_first else x, []
    for layer in range(layers):
        first = layer * directions
        weights = [parameters[each * at : each * (at + 1)] for at in range(first, first + directions)]
        x, new = layer_node(kind, x, weights, [state[first : first + directions] for state in states], activation)
        after.append(new)
    ends = [torch.cat(parts) for parts in zip(*after, strict=True)]
    return x.transpose(0, 1) if batch_first else x, *ends
