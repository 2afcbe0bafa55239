"""``torch.baddbmm`` with ``beta=0``, as the product of batches alone.

PyTorch's exporter multiplies the addend by zero and adds it: a tensor of all scores, which is most often made by
``torch.empty`` and takes the place of a mask.

Issue: none known. Seen in 2.13 with onnxscript 0.7.
"""

from typing import Any

import torch
from onnxscript import opset18 as op18

OPERATOR = torch.ops.aten.baddbmm.default


def baddbmm(addend: Any, batch1: Any, batch2: Any, beta: float = 1, alpha: float = 1) -> Any:
    """The translation of `OPERATOR`."""
    product = _times(op18.MatMul(batch1, batch2), alpha)
    return product if beta == 0 else op18.Add(product, _times(addend, beta))


def _times(x: Any, factor: float) -> Any:
    return x if factor == 1 else op18.Mul(x, op18.CastLike(factor, x))
