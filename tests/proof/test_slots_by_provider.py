"""What a proof puts into unused slots of a static KV cache, by provider."""

import numpy as np
import pytest

from posexport.proof.grid.inputs import UNUSED, unused_slots
from posexport.proof.subjects.runner import typed

_VALUES = np.random.default_rng(0).standard_normal((3, 5, 7)).astype(np.float32)


@pytest.mark.parametrize("kind", UNUSED)
@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16"])
def test_cuda_gets_finite_values(kind: str, dtype: str) -> None:
    """Its attention multiplies them by probabilities of 0: NaN and infinity made logits NaN on an H200."""
    feeds = {"past": unused_slots(_VALUES, kind), "ids": np.arange(3)}
    types = {"past": f"tensor({dtype})", "ids": "tensor(int64)"}
    on_cuda = typed(feeds, types, "cuda")
    assert np.isfinite(on_cuda["past"].astype(np.float64)).all()
    assert on_cuda["past"].dtype.name == {"float": "float32"}.get(dtype, dtype)
    on_cpu = typed(feeds, types, "cpu")["past"].astype(np.float64)
    if kind == "values":
        assert (on_cuda["past"].astype(np.float64) == on_cpu).all()
    assert np.isfinite(on_cpu).all() == (kind == "values" or (kind == "large" and dtype != "float16"))
