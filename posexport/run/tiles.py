"""Pictures that a model reads as tiles: the text around the tiles, and the features of the tiles as one list.

Shape letters: N tiles of a picture, P features of a tile, K features of a picture, C model size.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.text_rules import AnyResRules, TileRules

#: what image processors return beside pixels, [pictures, 2]: rows and columns of tiles, and heights and widths of the
#: pictures before they were prepared
TILES, IMAGE_SIZES = "tile_grids", "image_sizes"
#: features are resized if there are this many times more along an edge than ``most_tiles`` allows
_LARGER = 1.1


def number_of_tiles(grid: Sequence[int]) -> int:
    """The tiles of a picture with these rows and columns, and the whole picture."""
    return int(grid[0] * grid[1]) + 1


def written(rules: TileRules, features: str, grid: Sequence[int]) -> str:
    """The tiles of a picture and the whole picture in a prompt.

    Args:
        rules: how prompts hold tiles.
        features: the tokens of the features of a tile.
        grid: the rows and columns of the tiles; zeros: the picture is not cut.
    """
    rows, columns = (int(count) for count in grid)
    whole = f"{rules.whole_before}{features}{rules.whole_after}"
    if not rows:
        return whole
    lines = [
        "".join(
            rules.before.replace("{row}", str(row + 1)).replace("{column}", str(column + 1)) + features
            for column in range(columns)
        )
        for row in range(rows)
    ]
    return "".join(f"{line}{rules.row_after}" for line in lines) + rules.after + whole


def best_size(picture: Sequence[int], sizes: Sequence[Sequence[int]]) -> tuple[int, int]:
    """The one of ``sizes`` with most pixels of a picture (height, width) fitted into it, then with least padding."""
    height, width = (int(edge) for edge in picture)

    def rank(size: Sequence[int]) -> tuple[int, int]:
        scale = min(size[1] / width, size[0] / height)
        pixels = min(int(width * scale) * int(height * scale), width * height)
        return pixels, pixels - size[0] * size[1]

    best = max(sizes, key=rank)
    return best[0], best[1]


def packed(features_NPC: NDArray[Any], size: Sequence[int], rules: AnyResRules) -> NDArray[Any]:
    """The features of a picture in the order of a prompt, [K, C], as ``pack_image_features`` of transformers.

    First those of the whole picture. Then those of all tiles as one picture, without those of padding, row by row, with
    the vector of a new line after every row. Without tiles, one new line follows.

    Args:
        features_NPC: of the whole picture and of its tiles; the last of each is the vector of a new line.
        size: height and width of the picture in pixels before it was prepared.
        rules: by which it was cut.
    """
    whole_PC, newline_C = features_NPC[0, :-1], features_NPC[0, -1]
    if len(features_NPC) == 1:
        only: NDArray[Any] = features_NPC[0]
        return only
    rows, columns = (edge // rules.tile_size for edge in best_size(size, rules.sizes))
    side = math.isqrt(len(whole_PC))
    tiles = features_NPC[1 : 1 + rows * columns, :-1].reshape(rows, columns, side, side, -1)
    picture_HWC = _unpadded(tiles.swapaxes(1, 2).reshape(rows * side, columns * side, -1), size)
    height, width, channels = picture_HWC.shape
    if rules.most_tiles is not None:
        ratio = math.sqrt(height * width / (rules.most_tiles * side**2))
        if ratio > _LARGER:
            picture_HWC = _resized(_resized(picture_HWC, int(height // ratio), 0), int(width // ratio), 1)
    ends_H1C = np.broadcast_to(newline_C, (len(picture_HWC), 1, channels))
    return np.concatenate([whole_PC, np.concatenate([picture_HWC, ends_H1C], 1).reshape(-1, channels)])


def _unpadded(picture_HWC: NDArray[Any], size: Sequence[int]) -> NDArray[Any]:
    """The features of a picture of ``size`` without those of the padding around it."""
    height, width = picture_HWC.shape[:2]
    if size[1] / size[0] > width / height:
        # 7 digits, as transformers: a whole number may come out slightly below
        padding = (height - int(round(size[0] * (width / size[1]), 7))) // 2
        return picture_HWC[padding : height - padding]
    padding = (width - int(round(size[1] * (height / size[0]), 7))) // 2
    return picture_HWC[:, padding : width - padding]


def _resized(picture: NDArray[Any], length: int, axis: int) -> NDArray[Any]:
    """``picture`` with ``length`` along an axis, bilinear between the middles of its elements (torch.nn.functional)."""
    before = picture.shape[axis]
    places = np.clip((np.arange(length) + 0.5) * before / length - 0.5, 0, None)
    first = np.minimum(places.astype(np.int64), before - 1)
    share = np.expand_dims((places - first).astype(picture.dtype), [other for other in range(3) if other != axis])
    second = np.minimum(first + 1, before - 1)
    resized: NDArray[Any] = np.take(picture, first, axis) * (1 - share) + np.take(picture, second, axis) * share
    return resized
