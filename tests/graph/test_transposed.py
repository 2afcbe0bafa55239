"""Arrays in C order, a part at a time."""

import io
from functools import partial

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import DTypeLike

from posexport.graph import transposed
from posexport.graph.transposed import Array, InParts, parts


@pytest.mark.parametrize("part", [1, 64, 1000, 1 << 20])
@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        *((np.float32, np.float32), (ml_dtypes.bfloat16, np.float32), (np.float16, np.float32)),
        *((ml_dtypes.bfloat16, ml_dtypes.bfloat16), (np.int8, np.int8)),
    ],
)
@pytest.mark.parametrize("shape", [(130, 70), (70, 131), (1, 65), (5, 7, 3), (11,), (0, 4)])
def test_parts_are_the_array_in_order(
    shape: tuple[int, ...], stored: DTypeLike, dtype: DTypeLike, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transposed, "_PART", part)
    numbers = np.random.default_rng(5).integers(-100, 100, shape)
    array = (numbers / 8).astype(stored) if stored != np.int8 else numbers.astype(stored)
    forms: list[Array] = [array, array.T, array[::2], array[..., ::-1]]
    for form in forms:
        wanted = np.ascontiguousarray(form).astype(dtype).tobytes()
        assert b"".join(some.tobytes() for some in parts(form, dtype)) == wanted


def test_a_transposed_matrix_is_never_copied_whole() -> None:
    array = np.ones((3000, 2000), ml_dtypes.bfloat16).T
    assert max(some.size for some in parts(array, np.float32)) <= 1 << 20


def test_a_tensor_in_parts_is_written_as_it_is_read() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    whole = ir.Tensor(array)
    tensor = InParts(lambda: whole, partial(parts, array, array.dtype), whole.dtype, ir.Shape((3, 2)), name="w")
    file = io.BytesIO()
    tensor.tofile(file)
    assert file.getvalue() == tensor.tobytes() == np.ascontiguousarray(array).tobytes()
