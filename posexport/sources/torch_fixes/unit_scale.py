"""``rms_norm`` without a weight, with one scale for every channel.

PyTorch's exporter writes ones in the shape of the whole input, which depend on the number of tokens.

Issue: none known. Seen in 2.13.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset23 as op23

from posexport.base.targets.target import ATTENTION_OPSET

OPERATOR = torch.ops.aten.rms_norm.default
#: from which `OPERATOR` is one operator of ONNX; it is decomposed before
OPSET = ATTENTION_OPSET


def rms_norm(x: Any, normalized_shape: Sequence[Any], weight: Any = None, eps: float | None = None) -> Any:
    """The translation of `OPERATOR`."""
    if weight is None:
        known = all(isinstance(size, int) for size in normalized_shape)
        ones = np.ones(normalized_shape if known else 1, x.dtype.numpy())
        weight = op23.Constant(value=ir.tensor(ones))
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return op23.RMSNormalization(x, weight, axis=-len(normalized_shape), epsilon=eps)
