"""The image processors of Idefics3 and SmolVLM: a picture as tiles of one size, and the whole picture as the last."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.images import processor
from posexport.run.images.pictures import Picture
from posexport.run.images.processor import LANCZOS, Channels, ImageProcessor, default_size
from posexport.run.images.sizes import SizeSetting
from posexport.run.tiles import TILES

#: pixels along the longest edge of a picture, whatever `size` says
_LONGEST = 4096


class Idefics3ImageProcessor(ImageProcessor, frozen=True, kw_only=True):
    """Of idefics3 and colmodernvbert.

    ``size``: the longest edge of a picture before it is cut; ``max_image_size``: the edge of a tile, as
    ``longest_edge``; ``do_image_splitting``: cut pictures that are larger than a tile.
    """

    UNREAD = frozenset({"do_center_crop", "crop_size", "pad_size"})
    WITHOUT_EFFECT = frozenset({"return_row_col_info", "video_sampling", "image_seq_len"})

    do_convert_rgb: bool | None = True
    do_resize: bool | None = True
    size: SizeSetting | None = default_size(longest_edge=4 * 364)
    resample: int | None = LANCZOS
    do_rescale: bool | None = True
    do_normalize: bool | None = True
    image_mean: Channels | None = processor.IMAGENET_STANDARD_MEAN
    image_std: Channels | None = processor.IMAGENET_STANDARD_STD
    do_pad: bool | None = True
    do_image_splitting: bool | None = True
    max_image_size: SizeSetting | None = default_size(longest_edge=364)

    def arrays(self, pictures: Sequence[Picture]) -> dict[str, NDArray[Any]]:
        """``pixel_values`` [pictures, tiles, channels, edge, edge], a row for each picture, and ``tile_grids``.

        Tiles of zeros follow those of pictures that have fewer than another. ``tile_grids`` [pictures, 2]: the rows and
        columns of the tiles before the whole picture; zeros for a picture that is not cut.
        """
        cut = [self._tiles(picture) for picture in pictures]
        first, most = cut[0][0][0], max(len(tiles) for tiles, _ in cut)
        pixels = np.zeros((len(cut), most, *first.shape), np.float32)
        for row, (tiles, _) in zip(pixels, cut, strict=True):
            row[: len(tiles)] = processor.stacked(tiles)
        return {"pixel_values": pixels, TILES: np.array([grid for _, grid in cut], np.int64)}

    def resize(self, picture: Picture) -> Picture:
        """With the longest edge of `size`, the other one even; or to height and width."""
        size = self.sizes("size")
        if "longest_edge" in size:
            return self.resized_to(picture, _by_longest_edge(picture.shape, size["longest_edge"]))
        return super().resize(picture)

    def _tiles(self, picture: Picture) -> tuple[list[Picture], tuple[int, int]]:
        """The tiles of a picture, and their rows and columns; (0, 0): the picture is one tile."""
        edge = self._edge
        if self.do_resize:
            picture = self.resize(picture)
        if not self.do_image_splitting:
            return [self.normalized(self.resized_to(picture, (edge, edge)))], (0, 0)
        picture = self.resized_to(picture, _whole_tiles(picture.shape, edge))
        rows, columns = (length // edge for length in picture.shape[1:])
        if (rows, columns) == (1, 1):
            return [self.normalized(picture)], (0, 0)
        tiles = [
            picture[:, row * edge : (row + 1) * edge, column * edge : (column + 1) * edge]
            for row in range(rows)
            for column in range(columns)
        ]
        whole = self.resized_to(picture, (edge, edge))
        return [self.normalized(tile) for tile in [*tiles, whole]], (rows, columns)

    @property
    def _edge(self) -> int:
        size = self.sizes("max_image_size")
        if "longest_edge" not in size:
            raise PosexportError(f"max_image_size is {dict(size)}; give longest_edge, the edge of a tile")
        return size["longest_edge"]

    def check(self) -> None:
        """Also that tiles have an edge."""
        super().check()
        if self.max_image_size is None:
            raise PosexportError("max_image_size is none; give longest_edge, the edge of a tile")
        _ = self._edge


class SmolVLMImageProcessor(Idefics3ImageProcessor, frozen=True, kw_only=True):
    """Image processor with the defaults of smolvlm."""


def _by_longest_edge(shape: Sequence[int], edge: int) -> tuple[int, int]:
    """Height and width with the proportions of a picture of ``shape`` [..., H, W], the longer edge being ``edge``."""
    height, width = shape[-2:]
    proportion = width / height
    if width >= height:
        height, width = int(edge / proportion), edge
        height += height % 2
    else:
        height, width = edge, int(edge * proportion)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    proportion = width / height
    if width >= height and width > _LONGEST:
        height, width = int(_LONGEST / proportion), _LONGEST
    elif height > width and height > _LONGEST:
        height, width = _LONGEST, int(_LONGEST * proportion)
    return max(height, 1), max(width, 1)


def _whole_tiles(shape: Sequence[int], edge: int) -> tuple[int, int]:
    """Height and width of whole tiles: the longer edge is rounded up, then the other one of the same proportions."""
    height, width = shape[-2:]
    proportion = width / height
    if width >= height:
        width = math.ceil(width / edge) * edge
        return math.ceil(int(width / proportion) / edge) * edge, width
    height = math.ceil(height / edge) * edge
    return height, math.ceil(int(height * proportion) / edge) * edge
