"""Writing to and reading from a KV cache: in PyTorch, and as the standard ONNX operators that a graph has for it.

Shape letters: B batch, G KV heads, P past tokens or held states, M slots of a static cache, T new tokens, S all tokens
or states, C model size, D head size.

ONNX Runtime's GroupQueryAttention takes several new tokens of several rows only where nothing is cached yet.

On a device only attention without a bias is fused. A mask, [B, 1, 1, S] with 0 for kept keys, needs none where no
dropped key precedes a kept one: rows without padding, prompts that are padded on the right. Causal order
alone then keeps every query that counts from them (`OrderSuffices`).

Attention does not depend on the order of its keys. With unmasked keys first, one count per row replaces the mask
(``nonpad_kv_seqlen``), and fused attention on a device needs no bias, whichever keys are masked.
"""

from onnxscript import BOOL, FLOAT, INT32, INT64, script
from onnxscript import opset18 as op

from posexport.graph.ops.operator import OPSET, helper
from posexport.graph.ops.tensor import Tensor
from posexport.graph.ops.tracing import traced_as

#: of an axis, for ONNX's Slice
_TO_THE_END = 2**63 - 1


def _scatter(past_BGMD: Tensor, new_BGTD: Tensor, slots_T: Tensor) -> Tensor:
    import torch

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
    import torch

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
    import torch

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
    of both cases. `posexport.graph.passes.recognise.encoder_states` forgets these sizes.
    """
    return states_BSC[:, held_BGPD.shape[2] :]


def _concat(held_BGPD: Tensor, computed_BGSD: Tensor) -> Tensor:
    import torch

    pair = (held_BGPD, computed_BGSD)
    joined: Tensor = torch.onnx.ops.symbolic(
        "::Concat", pair, attrs={"axis": 2}, dtype=computed_BGSD.dtype, shape=computed_BGSD.shape, version=18
    )
    return joined


@traced_as(_concat)
def after_held(held_BGPD: Tensor, computed_BGSD: Tensor) -> Tensor:
    """Held keys or values, then those computed of the states `not_held`; sizes in a traced graph as there."""
    import torch

    return torch.cat((held_BGPD, computed_BGSD), 2)


#: the outputs, in order
OF_CALL = ("takes", "last_keys", "key_total", "write_at")


@helper
@script(OPSET, default_opset=op)
def CachedCalls(mask: FLOAT[...], qpos: INT64[...], kpos: INT64[...]) -> tuple[BOOL, INT32[...], INT32, INT64[...]]:
    rows = op.Shape(mask, start=0, end=1)
    new = op.Shape(qpos)
    keys = op.Shape(kpos)
    takes = op.Squeeze(op.Or(op.Or(op.Equal(rows, [1]), op.Equal(new, [1])), op.Equal(new, keys)), [0])
    last_keys = op.Cast(op.Expand(keys - 1, rows), to=6)
    # of Shape: for the value of Size ONNX Runtime waits for the device, which CUDA refuses while it captures a step
    key_total = op.Cast(op.Squeeze(keys, [0]), to=6)
    write_at = op.Expand(op.Slice(qpos, [0], [1]), rows)
    return takes, last_keys, key_total, write_at


@helper
@script(OPSET, default_opset=op)
def OrderSuffices(mask: FLOAT[...], takes: BOOL) -> BOOL:
    before = op.Concat(op.Slice(mask, [0], [1], [3]), op.Slice(mask, [0], [-1], [3]), axis=3)
    holes = op.Cast(op.Less(before, mask), to=1)
    # what the host knows as a Range of one element, which a device writes: nothing is copied to it
    known = op.Cast(takes, to=7)
    taken = op.Cast(op.Squeeze(op.Range(known, known + 1, 1), [0]), to=9)
    return op.And(taken, op.Equal(op.ReduceMax(holes, keepdims=0), 0.0))


#: the outputs, in order
KEPT = ("key_order", "key_counts")


@helper
@script(OPSET, default_opset=op)
def KeptKeys(mask: FLOAT[...]) -> tuple[INT64[...], INT64[...]]:
    """From a mask [B, 1, 1, S], 0 for unmasked keys: indices into the keys of all rows [B, S], and counts [B]."""
    drops = op.Cast(mask, to=9)
    kept_so_far = op.CumSum(op.Cast(op.Not(drops), to=7), 3)
    counts = op.Slice(kept_so_far, [-1], [9223372036854775807], [3])
    B = op.Shape(mask, start=0, end=1)
    S = op.Shape(mask, start=3, end=4)
    key = op.Range(0, op.Squeeze(S, [0]), 1)
    # a masked key comes after all unmasked ones, in the order of the masked
    place = op.Where(drops, key - kept_so_far + counts, kept_so_far - 1)
    keys = op.Expand(key, op.Shape(mask))
    order = op.Reshape(op.ScatterElements(keys, place, keys, axis=3), op.Concat(B, S, axis=0))
    first = op.Range(0, op.Squeeze(B * S, [0]), op.Squeeze(S, [0]))
    return order + op.Unsqueeze(first, [1]), op.Reshape(counts, [-1])
