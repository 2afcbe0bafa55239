"""Images of models of transformers: the example, the trained size, and masks of padding in the proof."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from posexport.base.spec import BATCH, HEIGHT, WIDTH, InputSpec, Limits
from posexport.base.tasks.registry import TASKS
from posexport.errors import PosexportError
from posexport.proof.grid.inputs import draw
from posexport.proof.grid.point import GridPoint
from posexport.through.pictures import PIXEL_MASK, picture_module, reads_any_size, trained_size


class Model(nn.Module):
    """A model of images of at least ``least`` rows; ``reads`` its mask or ignores it."""

    def __init__(self, *, reads: bool = True, least: int = 1, **config: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_channels=3, **config)
        self.reads, self.least = reads, least
        self.weight = nn.Parameter(torch.ones(1))

    def forward(
        self, pixel_values: torch.Tensor, pixel_mask: torch.Tensor | None = None, **_: Any
    ) -> dict[str, torch.Tensor]:
        if pixel_values.shape[2] < self.least:
            raise ValueError("too small")
        depth = pixel_values.mean(1) * self.weight
        return {"predicted_depth": depth * pixel_mask if self.reads and pixel_mask is not None else depth}


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"image_size": 20}, (20, 20)),
        ({"image_size": [20, 30]}, (20, 30)),
        ({"backbone_config": SimpleNamespace(image_size=12)}, (12, 12)),
        ({"image_size": None}, None),
        ({}, None),
    ],
)
def test_the_trained_size(config: dict[str, Any], size: tuple[int, int] | None) -> None:
    assert trained_size(SimpleNamespace(**config)) == size


def test_a_model_that_reads_larger_images_as_they_are() -> None:
    class Told(Model):
        def forward(self, pixel_values: Any, interpolate_pos_encoding: bool = False) -> Any:  # type: ignore[override]
            return super().forward(pixel_values)

    class Fixed(Model):
        def forward(self, pixel_values: Any) -> Any:  # type: ignore[override]
            return super().forward(pixel_values + torch.ones(20, 20))

    assert reads_any_size(Model())
    assert reads_any_size(Model(image_size=20, patch_size=4))
    assert not any(reads_any_size(kind(image_size=20, patch_size=4)) for kind in (Told, Fixed))


def test_a_mask_is_an_input_where_it_changes_an_output() -> None:
    for reads in (True, False):
        module = picture_module("config.json", Model(reads=reads), TASKS["depth-estimation"])
        assert (PIXEL_MASK in [spec.name for spec in module.inputs]) is reads


def test_a_small_image_then_one_of_the_trained_size() -> None:
    assert picture_module("x", Model(patch_size=14), TASKS["depth-estimation"]).inputs[0].axes == [BATCH, 3, 112, 168]
    assert picture_module("x", Model(least=200, image_size=224), TASKS["depth-estimation"]).inputs[0].axes == [
        BATCH,
        3,
        224,
        224,
    ]
    assert picture_module("x", Model(least=200), TASKS["depth-estimation"]).inputs[0].axes == [BATCH, 3, 256, 384]
    with pytest.raises(PosexportError, match=r"x: Model cannot be called with an image of 64x96 alone.*too small"):
        picture_module("x", Model(least=600), TASKS["depth-estimation"])


def test_a_size_that_is_not_accepted_is_not_proven() -> None:
    module = picture_module("x", Model(image_size=65), TASKS["depth-estimation"])
    sizes = [{HEIGHT: 8, WIDTH: 16}]
    limits = module.limits(Limits(proof_sizes=sizes, size_steps={HEIGHT: 8, WIDTH: 8}, max_sizes={WIDTH: 210}))
    assert limits.proof_sizes == [*sizes, {HEIGHT: 136, WIDTH: 200}, {HEIGHT: 72, WIDTH: 72}]
    assert module.limits(Limits()) == Limits()


def test_a_proof_has_padded_images() -> None:
    mask = InputSpec(name=PIXEL_MASK, dtype="int64", axes=[BATCH, HEIGHT, WIDTH], role="mask")
    feeds = draw(GridPoint(batch=3, length=4, sizes=((HEIGHT, 9), (WIDTH, 14))), [mask])
    mask_BHW = feeds[PIXEL_MASK]
    assert mask_BHW.shape == (3, 9, 14)
    assert mask_BHW[0].all()
    assert not mask_BHW.all()
    for mask_HW in mask_BHW:
        rows, columns = mask_HW.any(1), mask_HW.any(0)
        np.testing.assert_array_equal(mask_HW, np.outer(rows, columns))
        assert rows[:5].all()
        assert columns[:7].all()
