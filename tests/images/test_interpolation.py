"""Maps of numbers in another size: as PyTorch computes them."""

import numpy as np
import pytest
import torch

from posexport.images.interpolation import interpolate


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(7, 11), (23, 5), (1, 40), (14, 22)])
def test_as_pytorch(mode: str, size: tuple[int, int]) -> None:
    maps = np.random.default_rng(0).standard_normal((3, 7, 11))
    expected = torch.nn.functional.interpolate(torch.from_numpy(maps)[None], size=size, mode=mode)[0].numpy()
    np.testing.assert_allclose(interpolate(maps, size, mode), expected, rtol=0, atol=1e-12)  # type: ignore[arg-type]
