"""Tables of positions resampled to images of any size, against PyTorch's interpolation; places of patches."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from posexport.base.example_inputs import example_input
from posexport.base.spec import BATCH, PATCHES, InputSpec
from posexport.proof.grid.inputs import draw
from posexport.proof.grid.point import GridPoint
from posexport.through.grids import Patches
from tests.tolerances import agree

GRIDS = ((1, 3, 7), (1, 1, 1), (2, 5, 2), (1, 9, 4))


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("edge", [1, 5])
def test_positions_are_resampled_as_pytorch_does(edge: int, corners: bool) -> None:
    table = torch.randn(edge, edge, 3, dtype=torch.float64)
    patches = Patches(torch.tensor(GRIDS), sum(n * h * w for n, h, w in GRIDS), 1)
    indices, weights = patches.resampled(edge, torch.float64, corners=corners)
    got = (table.reshape(-1, 3)[indices] * weights[..., None]).sum(1)
    sizes = [(height, width) for frames, height, width in GRIDS for _ in range(frames)]
    want = [
        F.interpolate(table.permute(2, 0, 1)[None], size, mode="bilinear", align_corners=corners)[0].flatten(1).T
        for size in sizes
    ]
    agree(got, torch.cat(want), "operator", np.float64)


def test_places_are_grids_with_padding_behind() -> None:
    spec = InputSpec(
        name="image_position_ids", dtype="int64", axes=[BATCH, PATCHES, 2], role="places", size=2, column_sizes=[40, 40]
    )
    for places_P2 in example_input(spec, [5, 24, 2], np.random.default_rng(0)):
        columns, rows = places_P2.max(0) + 1
        assert columns * rows == 24
        assert columns % 2 == rows % 2 == 0
        assert (places_P2 == [(n % columns, n // columns) for n in range(24)]).all()
    drawn_BP2 = draw(GridPoint(batch=3, length=4, sizes=((PATCHES, 24),)), [spec])[spec.name]
    padding_BP = (drawn_BP2 == -1).all(-1)
    assert padding_BP.sum(1)[0] == 0 < padding_BP.sum()
    assert (np.diff(padding_BP.astype(int), axis=1) >= 0).all()
