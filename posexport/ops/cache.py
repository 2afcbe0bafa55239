"""Writing to and reading from a KV cache: in PyTorch, and as the standard ONNX operators that a graph has for it.

Shape letters: B batch, G KV heads, P past tokens or held states, M slots of a static cache, T new tokens, S all tokens
or states, C model size, D head size.
"""

import torch
from torch import Tensor

from posexport.ops.tracing import traced_as

#: of an axis, for ONNX's Slice
_TO_THE_END = 2**63 - 1


def _scatter(past_BGMD: Tensor, new_BGTD: Tensor, slots_T: Tensor) -> Tensor:
    first_B = slots_T[:1].expand(new_BGTD.shape[0])
    present: Tensor = torch.onnx.ops.symbolic(
        "::TensorScatter",
        (past_BGMD, new_BGTD, first_B),
        attrs={"axis": 2},
        dtype=past_BGMD.dtype,
        shape=past_BGMD.shape,
        version=24,
    )
    return present


@traced_as(_scatter)
def write_slots(past_BGMD: Tensor, new_BGTD: Tensor, slots_T: Tensor) -> Tensor:
    """A copy of a static cache with new tokens at their slots, which are consecutive; [B, G, M, D].

    A graph has one TensorScatter, which a runtime does in place where its past and present are one buffer.
    """
    return past_BGMD.index_copy(2, slots_T, new_BGTD)


def _slice(present_BGMD: Tensor, slots_S: Tensor) -> Tensor:
    batch, heads, _, size = present_BGMD.shape
    start, axis = (torch.tensor([value], dtype=torch.int64) for value in (0, 2))
    used: Tensor = torch.onnx.ops.symbolic(
        "::Slice",
        (present_BGMD, start, slots_S[-1:] + 1, axis),
        dtype=present_BGMD.dtype,
        shape=(batch, heads, slots_S.shape[0], size),
        version=24,
    )
    return used


@traced_as(_slice)
def read_slots(present_BGMD: Tensor, slots_S: Tensor) -> Tensor:
    """The slots 0, 1, 2 ... that ``slots_S`` counts, [B, G, S, D]."""
    return present_BGMD[:, :, : slots_S.shape[0]]


def _slice_not_held(states_BSC: Tensor, held_BGPD: Tensor) -> Tensor:
    starts = torch.onnx.ops.symbolic(
        "::Shape", (held_BGPD,), attrs={"start": 2, "end": 3}, dtype=torch.int64, shape=(1,), version=18
    )
    end, axis = (torch.tensor([number], dtype=torch.int64) for number in (_TO_THE_END, 1))
    rest: Tensor = torch.onnx.ops.symbolic(
        "::Slice", (states_BSC, starts, end, axis), dtype=states_BSC.dtype, shape=states_BSC.shape, version=18
    )
    return rest


@traced_as(_slice_not_held)
def not_held(states_BSC: Tensor, held_BGPD: Tensor) -> Tensor:
    """The states after the first P, which are in the cache.

    These are all or none. Sizes in a traced graph are declared as for all states: its tracer would specialise on one
    of both cases. `posexport.passes.recognise.encoder_states` forgets these sizes.
    """
    return states_BSC[:, held_BGPD.shape[2] :]


def _concat(held_BGPD: Tensor, computed_BGSD: Tensor) -> Tensor:
    pair = (held_BGPD, computed_BGSD)
    joined: Tensor = torch.onnx.ops.symbolic(
        "::Concat", pair, attrs={"axis": 2}, dtype=computed_BGSD.dtype, shape=computed_BGSD.shape, version=18
    )
    return joined


@traced_as(_concat)
def after_held(held_BGPD: Tensor, computed_BGSD: Tensor) -> Tensor:
    """Held keys or values, then those computed of the states `not_held`; sizes in a traced graph as there."""
    return torch.cat((held_BGPD, computed_BGSD), 2)
