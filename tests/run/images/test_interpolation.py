"""Maps of numbers in another size: as PyTorch computes them."""

import numpy as np
import pytest
import torch

from posexport.run.images.interpolation import interpolate
from tests.tolerances import agree


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(7, 11), (23, 5), (1, 40), (14, 22)])
def test_as_pytorch(mode: str, size: tuple[int, int]) -> None:
    maps = np.random.default_rng(0).standard_normal((3, 7, 11))
    expected = torch.nn.functional.interpolate(torch.from_numpy(maps)[None], size=size, mode=mode)[0].numpy()
    agree(interpolate(maps, size, mode), expected, "operator", np.float64)  # type: ignore[arg-type]
