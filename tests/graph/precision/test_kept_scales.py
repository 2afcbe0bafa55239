"""Of a quantized weight its scales are kept until they are written, and nothing else: models have many weights."""

import gc
import tracemalloc

import numpy as np
import onnx_ir as ir
import pytest

from posexport.graph.precision.blocks.packing import Scheme, for_dequantize, for_product
from posexport.graph.precision.projections import Weight

K, N, BLOCK = 640, 1280, 32


@pytest.mark.parametrize("tensors", [for_product, for_dequantize])
@pytest.mark.parametrize("bits", [4, 8])
def test_scales_alone_are_kept_and_the_matrix_is_read_once(tensors: type, bits: int) -> None:
    matrix = np.random.default_rng(5).normal(size=(K, N)).astype(np.float32)
    stored = ir.Tensor(matrix)
    weight = Weight(ir.Value(name="w", const_value=stored), (stored,), transposed=False, names=("w",))
    read = 0

    def of_file() -> np.ndarray:
        nonlocal read
        read += 1
        return matrix

    values, scales = tensors(weight, Scheme(bits, BLOCK)).values()
    gc.collect()
    tracemalloc.start()
    try:
        values.make(of_file)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    scale_bytes = 4 * K * N // BLOCK
    assert scale_bytes <= kept < 1.5 * scale_bytes
    assert np.prod(scales.make(of_file).shape) == K * N // BLOCK
    assert read == 1
