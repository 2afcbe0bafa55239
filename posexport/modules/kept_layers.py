"""PyTorch's layers that keep a state between tokens: causal `nn.Conv1d`, `nn.LSTM` and `nn.GRU`.

`keeping` replaces their forward for the duration of a call: they get the new tokens alone, take their state from
`posexport.nn.layer_states` and leave the next one there. Padding changes no state, before, after or
between tokens: a row is read with its padding on one side, and its outputs are put back.

A convolution is causal where the caller pads as many zeros on the left as its kernel reaches back, or where ``padding``
has as many and the caller cuts off the end; a comparison with the author's forward decides. In a graph, LSTM and GRU
are ONNX's operators.

Shape letters: B batch, T tokens, C channels, L layers, H channels of a recurrent layer.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.graph.ops.states import convolution
from posexport.nn.cached_call import NotCachedError
from posexport.nn.calling import carried, carrying
from posexport.nn.layer_states import CONV, RECURRENT, States
from posexport.nn.recurrent_node import gates_in_order
from posexport.sources.torch_fixes.patch import patched


@dataclass(frozen=True)
class _Call:
    """``mask_BT``: 0 at padding of the new tokens."""

    states: States
    mask_BT: Tensor


def stateful_layers(module: nn.Module) -> list[nn.Module]:
    """The layers of ``module`` that may keep a state."""
    return [layer for layer in module.modules() if (_reach(layer) if isinstance(layer, nn.Conv1d) else _recurs(layer))]


@contextmanager
def keeping(states: States, mask_BT: Tensor) -> Iterator[None]:
    """Inside the block, these layers read their states from ``states`` and leave the next ones there."""
    with carrying(_Call(states, mask_BT), _Call), ExitStack() as stack:
        for kind, forward in ((nn.Conv1d, _conv), (nn.LSTM, _recurrent), (nn.GRU, _recurrent)):
            stack.enter_context(patched(kind, "forward", forward))
        yield


def _call() -> _Call:
    call = carried(_Call)
    assert call is not None
    return call


def _reach(layer: nn.Conv1d) -> int:
    """How many past tokens a convolution may read; 0 for one that keeps no state."""
    if layer.stride != (1,) or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return 0
    reach = (layer.kernel_size[0] - 1) * layer.dilation[0]
    return reach if layer.padding[0] in (0, reach) else 0


def _recurs(layer: nn.Module) -> bool:
    return isinstance(layer, nn.LSTM | nn.GRU) and not layer.bidirectional and not layer.proj_size


def _conv(layer: nn.Conv1d, x: Tensor) -> Tensor:
    """The forward of a causal convolution: x [B, C, T], with its caller's zeros before it."""
    reach = _reach(layer)
    if not reach or x.ndim != 3:
        stateless: Tensor = layer._conv_forward(x, layer.weight, layer.bias)  # noqa: SLF001 (all of its forward)
        return stateless
    call, pads_itself = _call(), layer.padding != (0,)
    new = x if pads_itself else x[..., reach:]
    past = call.states.before(CONV, (x.shape[0], layer.in_channels, reach), x)
    depthwise = layer.groups == layer.in_channels == layer.out_channels and layer.dilation == (1,)
    if depthwise:
        out, present = convolution(new, layer.weight, layer.bias, past, call.mask_BT, silu=False)
    else:
        out, present = _convolved(layer, new, past, call.mask_BT)
    call.states.present[CONV].append(present)
    return F.pad(out, (0, reach)) if pads_itself else out


def _convolved(layer: nn.Conv1d, new: Tensor, past: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs [B, C, T] and the last inputs, with every row in the order padding, past, tokens."""
    length, reach = new.shape[2], past.shape[2]
    is_token = F.pad(mask_BT, (reach, 0), value=1)
    order = (torch.arange(length + reach, device=new.device) + is_token * (length + reach)).argsort(1)
    inputs = torch.cat((past, new), 2).gather(2, order[:, None].expand(-1, new.shape[1], -1))
    out = F.conv1d(inputs, layer.weight, layer.bias, dilation=layer.dilation, groups=layer.groups)
    places = (length - mask_BT.sum(1, keepdim=True) + mask_BT.cumsum(1) - 1).clamp(min=0)
    return out.gather(2, places[:, None].expand(-1, out.shape[1], -1)), inputs[..., length:]


def _recurrent(layer: Any, x: Any, hx: Any = None) -> tuple[Tensor, Any]:
    """The forward of an LSTM or GRU; its caller's initial state must be zeros.

    The state: hidden states of all its layers, [B, L, H]; with the cells of an LSTM [B, 2 L, H].
    """
    if not _recurs(layer) or not isinstance(x, Tensor) or x.ndim != 3:
        raise NotCachedError(f"its {type(layer).__name__} reads backwards, has projections, or takes no [B, T, C]")
    initial = [] if hx is None else [hx] if isinstance(hx, Tensor) else list(hx)
    if not torch.compiler.is_compiling() and any(bool(state.any()) for state in initial):
        raise NotCachedError(f"its {type(layer).__name__} starts from another state than zeros")
    call, parts = _call(), 2 if isinstance(layer, nn.LSTM) else 1
    x_BTC = x if layer.batch_first else x.transpose(0, 1)
    shape = (x_BTC.shape[0], parts * layer.num_layers, layer.hidden_size)
    past = call.states.before(RECURRENT, shape, x)
    run = _as_nodes if torch.compiler.is_compiling() else _row_by_row
    out_BTH, present = run(layer, x_BTC, past, call.mask_BT)
    call.states.present[RECURRENT].append(present)
    halves = present.transpose(0, 1).contiguous().chunk(parts)
    return out_BTH if layer.batch_first else out_BTH.transpose(0, 1), halves if parts == 2 else halves[0]


def _row_by_row(layer: Any, x_BTC: Tensor, past: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's layer on the tokens of each row alone."""
    out_BTH, present = x_BTC.new_zeros(*x_BTC.shape[:2], layer.hidden_size), past.clone()
    settings = (layer._flat_weights, layer.bias, layer.num_layers, 0.0, False, False, True)  # noqa: SLF001 (as its forward)
    for row, mask_T in enumerate(mask_BT != 0):
        if not bool(mask_T.any()):
            continue
        x, state = x_BTC[row : row + 1, mask_T], past[row].unsqueeze(1).contiguous()
        if isinstance(layer, nn.LSTM):
            out, *after = torch.lstm(x, state.chunk(2), *settings)
        else:
            out, *after = torch.gru(x, state, *settings)
        out_BTH[row, mask_T], present[row] = out[0], torch.cat(after)[:, 0]
    return out_BTH, present


def _as_nodes(layer: Any, x_BTC: Tensor, past: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """ONNX's LSTM or GRU, a node for each layer, on rows with their tokens before their padding."""
    kind = "LSTM" if isinstance(layer, nn.LSTM) else "GRU"
    batch, length = x_BTC.shape[:2]
    order = (torch.arange(length, device=x_BTC.device) + (1 - mask_BT) * length).argsort(1)
    x_TBC = x_BTC.gather(1, order[..., None].expand(-1, -1, x_BTC.shape[2])).transpose(0, 1)
    count_B = mask_BT.sum(1)
    before, after = past.transpose(0, 1), []
    for index in range(layer.num_layers):
        # the state before, h alone or h and the cells
        states = [before[at : at + 1] for at in range(index, before.shape[0], layer.num_layers)]
        inputs = [x_TBC, *_weights(layer, index, kind), count_B.to(torch.int32), *states]
        attributes = {"hidden_size": layer.hidden_size, **({"linear_before_reset": 1} if kind == "GRU" else {})}
        shapes = [(length, 1, batch, layer.hidden_size), *[(1, batch, layer.hidden_size)] * len(states)]
        y, *new = torch.onnx.ops.symbolic_multi_out(
            kind, inputs, attributes, dtypes=[x_TBC.dtype] * len(shapes), shapes=shapes
        )
        # for a row without tokens ONNX Runtime returns zeros
        after.append([torch.where(count_B[:, None] > 0, to, at) for to, at in zip(new, states, strict=True)])
        x_TBC = y.squeeze(1)
    places = (mask_BT.cumsum(1) - 1).clamp(min=0)
    out_BTH = x_TBC.transpose(0, 1).gather(1, places[..., None].expand(-1, -1, layer.hidden_size))
    present = torch.cat([states[part] for part in range(len(after[0])) for states in after])
    return out_BTH, present.transpose(0, 1)


def _weights(layer: Any, index: int, kind: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """W, R and B of the operator: [1, gates H, C], [1, gates H, H] and [1, 2 gates H]."""

    def ordered(name: str) -> Tensor:
        return gates_in_order(kind, getattr(layer, f"{name}_l{index}"))[None]

    biases = torch.cat((ordered("bias_ih"), ordered("bias_hh")), 1) if layer.bias else None
    return ordered("weight_ih"), ordered("weight_hh"), biases
