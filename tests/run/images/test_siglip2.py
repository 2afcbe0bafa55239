"""SigLIP 2's pictures as patches: their number, their order and the mask."""

import numpy as np
import pytest

from posexport.run.images.siglip2 import Siglip2ImageProcessor


@pytest.mark.parametrize(("edges", "most"), [((61, 83), 9), ((300, 200), 256), ((17, 400), 40), ((64, 64), 16)])
def test_as_many_patches_as_fit(edges: tuple[int, int], most: int) -> None:
    height, width = Siglip2ImageProcessor(patch_size=4, max_num_patches=most).whole_patches(edges)
    assert height % 4 == width % 4 == 0
    assert height * width // 16 <= most < (height + 4) * (width + 4) // 16
    assert abs(height / width - edges[0] / edges[1]) <= max(4 / width, 4 * height / width**2)


def test_patches_are_in_the_order_of_rows_with_padding_behind() -> None:
    picture = np.arange(3 * 4 * 6, dtype=np.uint8).reshape(3, 4, 6)
    plain = Siglip2ImageProcessor(
        do_resize=False, do_rescale=False, do_normalize=False, patch_size=2, max_num_patches=8
    )
    arrays = plain.arrays([picture])
    assert arrays["spatial_shapes"].tolist() == [[2, 3]]
    assert arrays["pixel_attention_mask"].tolist() == [[1] * 6 + [0] * 2]
    values_PD = arrays["pixel_values"][0]
    for row in range(2):
        for column in range(3):
            patch = picture[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            assert (values_PD[3 * row + column] == patch.transpose(1, 2, 0).flatten()).all()
    assert (values_PD[6:] == 0).all()
