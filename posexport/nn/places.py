"""Writing to and reading from a cache of fixed size, whose places hold a token each.

While ``torch.onnx.export`` traces, writing is one TensorScatter (opset 24), which a runtime does in place where what it
takes and gives is one buffer; reading is one Slice.

Shape letters: B batch, G heads, C places, T new tokens, S tokens read, D head size.
"""

import torch
from torch import Tensor


def scattered(past_BGCD: Tensor, new_BGTD: Tensor, slots_T: Tensor) -> Tensor:
    """``past_BGCD`` with the new tokens at ``slots_T``, which are consecutive; a copy."""
    if not torch.onnx.is_in_onnx_export():
        return past_BGCD.index_copy(2, slots_T, new_BGTD)
    first_B = slots_T[:1].expand(new_BGTD.shape[0])
    written: Tensor = torch.onnx.ops.symbolic(
        "::TensorScatter",
        (past_BGCD, new_BGTD, first_B),
        attrs={"axis": 2},
        dtype=past_BGCD.dtype,
        shape=past_BGCD.shape,
        version=24,
    )
    return written


def first_places(present_BGCD: Tensor, slots_S: Tensor) -> Tensor:
    """The places of ``slots_S``, which are 0, 1, 2 ...; [B, G, S, D]."""
    total = slots_S.shape[0]
    if not torch.onnx.is_in_onnx_export():
        return present_BGCD[:, :, :total]
    batch, groups, _, size = present_BGCD.shape
    zero, axis = (torch.tensor([number], dtype=torch.int64) for number in (0, 2))
    read: Tensor = torch.onnx.ops.symbolic(
        "::Slice",
        (present_BGCD, zero, slots_S[-1:] + 1, axis),
        dtype=present_BGCD.dtype,
        shape=(batch, groups, total, size),
        version=24,
    )
    return read
