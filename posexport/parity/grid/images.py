"""The sizes of images."""

from collections.abc import Sequence

import msgspec

from posexport.errors import PosexportError
from posexport.parity.grid.point import GridPoint
from posexport.parity.grid.text import BATCHES
from posexport.spec import HEIGHT, WIDTH, Limits


def points(limits: Limits, lengths: Sequence[int] | None) -> list[GridPoint]:
    """Every size of image, alone and in a batch; ``lengths`` are sides of square ones."""
    least = [min(image[side] for image in limits.proof_image_sizes) for side in (0, 1)]
    for side in lengths or ():
        if side < max(least):
            raise PosexportError(f"an image of {side}x{side} is below the model's minimum of {least[0]}x{least[1]}")
    sizes = limits.proof_image_sizes if lengths is None else [(side, side) for side in lengths]
    patch = limits.patch_size
    grid = [
        GridPoint(batch=batch, length=max(1, height // patch) * max(1, width // patch), image=(height, width))
        for height, width in sizes
        for batch in BATCHES
    ]
    if lengths is None:
        too_small = _too_small(limits, limits.proof_image_sizes[-1])
        grid += [msgspec.structs.replace(grid[0], image=image, must_be_rejected=True) for image in too_small]
    return sorted(grid, key=lambda point: point.length)


def _too_small(limits: Limits, image: tuple[int, int]) -> list[tuple[int, int]]:
    """A proven image, cut to one pixel less than the smallest height or width."""
    height, width = image
    least = limits.min_sizes
    cut = [(least[HEIGHT] - 1, width)] if least.get(HEIGHT, 1) > 1 else []
    return cut + ([(height, least[WIDTH] - 1)] if least.get(WIDTH, 1) > 1 else [])
