"""int8 weights, symmetric, with a scale for each output channel."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.precision.derived import Derived
from posexport.precision.linear import Weight

#: The largest magnitude. Processors with VNNI (and ARM) sum products in 32 bits; AVX2 and AVX-512 without VNNI sum
#: pairs in 16, which a limit of 63 would keep whole at a cost in accuracy for all; there ONNX Runtime has
#: ``session.x64quantprecision`` instead (`posexport.runtime.session`).
LIMIT = 127


def scales(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """[N] of a matrix [K, N]: its channel's largest magnitude / `LIMIT`; 1 for a channel of zeros."""
    scale = np.abs(matrix).max(0) / np.float32(LIMIT)
    return np.where(scale == 0, np.float32(1), scale).astype(np.float32)


def rounded(matrix: NDArray[np.float32]) -> NDArray[np.int8]:
    """[K, N]: the multiple of its channel's scale that is nearest to each weight."""
    whole: NDArray[np.int8] = np.clip(np.rint(matrix / scales(matrix)), -LIMIT, LIMIT).astype(np.int8)
    return whole


def by_channel(weight: Weight, smoothing: NDArray[np.float32] | None = None) -> Mapping[str, Derived]:
    """int8 [K, N] and scales [N], for products; ``smoothing`` [K]: what x is divided by before."""
    k, n = weight.sizes
    factor = np.float32(1) if smoothing is None else smoothing[:, None]
    return {
        "int8": Derived(ir.DataType.INT8, (k, n), lambda matrix: rounded(matrix * factor)),
        "scale": Derived(ir.DataType.FLOAT, (n,), lambda matrix: scales(matrix * factor)),
    }


def by_row(weight: Weight) -> Mapping[str, Derived]:
    """The same of a table [N, K] that is read row by row: int8 [N, K] and scales [N, 1]."""
    k, n = weight.sizes
    return {
        "int8_rows": Derived(ir.DataType.INT8, (n, k), lambda matrix: rounded(matrix).T),
        "row_scale": Derived(ir.DataType.FLOAT, (n, 1), lambda matrix: scales(matrix)[:, None]),
    }
