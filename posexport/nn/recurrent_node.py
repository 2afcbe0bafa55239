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
    kind: str,
    x_TBC: Tensor,
    weights: Sequence[Sequence[Tensor]],
    states: Sequence[Tensor],
    activation: str = "",
    lengths_B: Tensor | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """The outputs [T, B, D H] of one layer, and its states after the last token.

    ``weights``: of each direction PyTorch's input and recurrent weights, and its biases if it has them. ``states``: the
    hidden states before, [D, B, H], and the cells of an LSTM. ``activation``: of an RNN. ``lengths_B``: of the rows,
    if they do not all have T tokens.
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
        kind,
        [x_TBC, *inputs, biases, None if lengths_B is None else lengths_B.int(), *states],
        attributes,
        dtypes=[x_TBC.dtype] * len(shapes),
        shapes=shapes,
    )
    return y_TDBH.transpose(1, 2).flatten(2), list(after)


def projected_node(
    kind: str,
    x_TBC: Tensor,
    weights: Sequence[Sequence[Tensor]],
    states: Sequence[Tensor],
    activation: str = "",
    lengths_B: Tensor | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """As `layer_node` for an LSTM with projected hidden states, h = P m: the last of each direction's weights.

    ONNX has no projection. An LSTM of m has the recurrent weights R P, and starts from m = 0: R h of the states before
    are further channels of the first token that a direction reads. Letter: P channels of a projected state.
    """
    hidden_DBP, cells_DBH = states
    inputs_TBC, unprojected = [x_TBC], []
    for at, (of_input, recurrent, *biases, projection) in enumerate(weights):
        by_direction = [recurrent if other == at else torch.zeros_like(recurrent) for other in range(len(weights))]
        unprojected.append([torch.cat([of_input, *by_direction], 1), recurrent @ projection, *biases])
        inputs_TBC.append(_at_first(hidden_DBP[at], x_TBC.shape[0], lengths_B, backwards=at == 1))
    start = [torch.zeros_like(cells_DBH), cells_DBH]
    y_TBM, (hidden_DBH, after_DBH) = layer_node(
        kind, torch.cat(inputs_TBC, 2), unprojected, start, activation, lengths_B
    )
    projections = [of_direction[-1] for of_direction in weights]
    of_directions = zip(y_TBM.chunk(len(weights), 2), projections, strict=True)
    y_TBC = torch.cat([y @ projection.mT for y, projection in of_directions], 2)
    ends = [hidden_DBH[at] @ projection.mT for at, projection in enumerate(projections)]
    return y_TBC, [torch.stack(ends), after_DBH]


def _at_first(state_BP: Tensor, length: Any, lengths_B: Tensor | None, *, backwards: bool) -> Tensor:
    """[T, B, P]: a state at the first token of each row, or at its last one, and zeros elsewhere."""
    token_T1 = torch.arange(length, device=state_BP.device)[:, None]
    ends: Any = length if lengths_B is None else lengths_B
    is_first = token_T1 == (ends - 1 if backwards else 0)
    return is_first[..., None] * state_BP
