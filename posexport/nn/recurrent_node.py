"""ONNX's LSTM, GRU and RNN in a trace: PyTorch's exporter unrolls the layers that it does not know.

Shape letters: T tokens, B batch, C channels of the input, D directions (1 or 2), H channels of a direction.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

#: ONNX's order of gates, as positions in PyTorch's
GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


def gates_in_order(kind: str, parameter: Tensor) -> Tensor:
    """A weight or bias of PyTorch with its gates in ONNX's order."""
    gates = parameter.chunk(len(GATES[kind]))
    return torch.cat([gates[at] for at in GATES[kind]])


def layer_node(
    kind: str, x_TBC: Tensor, weights: Sequence[Sequence[Tensor]], states: Sequence[Tensor], activation: str = ""
) -> tuple[Tensor, list[Tensor]]:
    """The outputs [T, B, D H] of one layer, and its states after the last token.

    ``weights``: of each direction PyTorch's input and recurrent weights, and its biases if it has them. ``states``: the
    hidden states before, [D, B, H], and the cells of an LSTM. ``activation``: of an RNN.
    """
    directions, (length, batch), hidden = len(weights), x_TBC.shape[:2], weights[0][1].shape[1]
    ordered = [[gates_in_order(kind, parameter) for parameter in parameters] for parameters in weights]
    inputs = [torch.stack(parts) for parts in zip(*[parameters[:2] for parameters in ordered], strict=True)]
    biases = torch.stack([torch.cat(parameters[2:]) for parameters in ordered]) if len(ordered[0]) > 2 else None
    attributes: dict[str, Any] = {"hidden_size": hidden}
    if directions == 2:
        attributes["direction"] = "bidirectional"
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    if activation:
        attributes["activations"] = [activation] * directions
    shapes = [(length, directions, batch, hidden), *[(directions, batch, hidden)] * len(states)]
    y_TDBH, *after = torch.onnx.ops.symbolic_multi_out(
        kind, [x_TBC, *inputs, biases, None, *states], attributes, dtypes=[x_TBC.dtype] * len(shapes), shapes=shapes
    )
    return y_TDBH.transpose(1, 2).flatten(2), list(after)
