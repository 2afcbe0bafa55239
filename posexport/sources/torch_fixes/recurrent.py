"""`nn.LSTM`, `nn.GRU` and `nn.RNN` with any states and directions, as ONNX's operators.

PyTorch's exporter unrolls the traced number of tokens, or fixes the batch size where states are arguments. Rows may be
packed (`packed_rows`).

Issue: none known. Seen in 2.13.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from posexport.nn.recurrent_node import layer_node, projected_node
from posexport.sources.torch_fixes.packed_rows import PackedRows

#: PyTorch's functions: ONNX's operator and its activation, where the operator has another default
_KINDS: dict[Callable[..., Any], tuple[str, str]] = {
    torch.lstm: ("LSTM", ""),
    torch.gru: ("GRU", ""),
    torch.rnn_tanh: ("RNN", ""),
    torch.rnn_relu: ("RNN", "Relu"),
}
#: how many arguments a call has, with packed rows too
_ARGUMENTS = 9


def recurrent(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], packed: PackedRows
) -> tuple[Tensor, ...] | None:
    """What a layer returns; None for other functions."""
    if func not in _KINDS or kwargs or len(args) != _ARGUMENTS:
        return None
    if isinstance(args[3], bool):
        x, before, parameters, biased, layers, _, _, both_ways, batch_first = args
        x_TBC, lengths_B = x.transpose(0, 1) if batch_first else x, None
    elif (rows := packed.of(args[1])) is not None:
        x, _, before, parameters, biased, layers, _, _, both_ways = args
        x_TBC, lengths_B, batch_first = x.unflatten(0, rows.shape), rows.lengths_B, False
    else:
        return None
    states = [before] if isinstance(before, Tensor) else list(before)
    projected = states[0].shape[2] != states[-1].shape[2]
    kind, activation = _KINDS[func]
    directions, each, after = 1 + both_ways, (4 if biased else 2) + projected, []
    for layer in range(layers):
        first = layer * directions
        weights = [parameters[each * at : each * (at + 1)] for at in range(first, first + directions)]
        befores = [state[first : first + directions] for state in states]
        node = projected_node if projected else layer_node
        x_TBC, new = node(kind, x_TBC, weights, befores, activation, lengths_B)
        after.append(new)
    ends = [torch.cat(parts) for parts in zip(*after, strict=True)]
    if lengths_B is not None:
        return x_TBC.flatten(0, 1), *ends
    return x_TBC.transpose(0, 1) if batch_first else x_TBC, *ends
