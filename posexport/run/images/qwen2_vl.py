"""Qwen2-VL's image processor: pictures of any size as patches, [patches, values of a patch], with their grids."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.images import processor
from posexport.run.images.pictures import Picture
from posexport.run.images.processor import BICUBIC, Channels, ImageProcessor, default_size
from posexport.run.images.sizes import SizeSetting

PIXELS, GRIDS = "pixel_values", "image_grid_thw"
#: the longest edge is at most this often the shortest
_EXTREME = 200


class Qwen2VLImageProcessor(ImageProcessor, frozen=True, kw_only=True):
    """Of qwen2_vl, qwen2_5_vl and others.

    ``size``: the least and the most pixels of a resized picture, as ``shortest_edge`` and ``longest_edge``;
    ``min_pixels`` and ``max_pixels`` are older names of them. ``patch_size``: edge of a patch in pixels;
    ``temporal_patch_size``: frames of a patch, all of them the picture; ``merge_size``: patches along each edge that
    become one token, which are neighbours.
    """

    UNREAD = frozenset({"do_center_crop", "crop_size", "do_pad", "pad_size"})

    do_convert_rgb: bool | None = True
    do_resize: bool | None = True
    size: SizeSetting | None = default_size(shortest_edge=56 * 56, longest_edge=28 * 28 * 1280)
    default_to_square: bool | None = False
    resample: int | None = BICUBIC
    do_rescale: bool | None = True
    do_normalize: bool | None = True
    image_mean: Channels | None = processor.OPENAI_CLIP_MEAN
    image_std: Channels | None = processor.OPENAI_CLIP_STD
    min_pixels: int | None = None
    max_pixels: int | None = None
    patch_size: int = 14
    temporal_patch_size: int = 2
    merge_size: int = 2

    def completed(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """``min_pixels`` and ``max_pixels`` as the size that they mean."""
        bounds = {"shortest_edge": settings.get("min_pixels"), "longest_edge": settings.get("max_pixels")}
        bounds = {name: pixels for name, pixels in bounds.items() if pixels is not None}
        size = settings.get("size", self.size)
        if not bounds or not isinstance(size, Mapping):
            return settings
        edges_in_size = {name: edge for name, edge in size.items() if name not in ("min_pixels", "max_pixels")}
        return {**settings, "size": {**edges_in_size, **bounds}}

    def arrays(self, pictures: Sequence[Picture]) -> dict[str, NDArray[Any]]:
        """``pixel_values`` [patches, values] of all pictures, and ``image_grid_thw`` [pictures, 3]."""
        prepared = [self.one(picture) for picture in pictures]
        grids = [[1, *(edge // self.patch_size for edge in picture.shape[1:])] for picture in prepared]
        values = np.concatenate([self._patches(picture) for picture in prepared])
        return {PIXELS: values, GRIDS: np.array(grids, dtype=np.int64)}

    def one(self, picture: Picture) -> Picture:
        """A picture resized and normalized; nothing is cut."""
        return self.normalized(self.resize(picture) if self.do_resize else picture)

    def resize(self, picture: Picture) -> Picture:
        """With edges that are whole tokens, and as many pixels as `size` allows."""
        size = self.sizes("size")
        if set(size) != {"shortest_edge", "longest_edge"}:
            raise PosexportError(
                f"size is {dict(size)}; Qwen2VLImageProcessor needs shortest_edge and longest_edge, the least and the "
                "most pixels"
            )
        edges = _whole_tokens(
            *picture.shape[1:],
            edge=self.patch_size * self.merge_size,
            least=size["shortest_edge"],
            most=size["longest_edge"],
        )
        return self.resized_to(picture, edges)

    def _patches(self, picture: Picture) -> NDArray[np.float32]:
        """[patches, channels * frames * rows * columns]; patches of one token follow one another."""
        channels, height, width = picture.shape
        patch, merge = self.patch_size, self.merge_size
        if height % (patch * merge) or width % (patch * merge):
            raise PosexportError(
                f"a picture of {height} x {width} (height x width) is no whole number of {patch * merge} pixels along "
                "each edge; leave do_resize true, or give one that is"
            )
        tokens = (height // (patch * merge), width // (patch * merge))
        split = picture.astype(np.float32).reshape(channels, tokens[0], merge, patch, tokens[1], merge, patch)
        ordered = split.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
        frames = np.broadcast_to(ordered, (*ordered.shape[:5], self.temporal_patch_size, patch, patch))
        return frames.reshape(-1, channels * self.temporal_patch_size * patch * patch)

    def check(self) -> None:
        """Also that edges of patches are at least 1."""
        super().check()
        for name in ("patch_size", "temporal_patch_size", "merge_size"):
            if getattr(self, name) < 1:
                raise PosexportError(f"{name} is {getattr(self, name)}; it must be at least 1")


def in_rows(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays of the processor with a row for each picture: ``pixel_values`` [pictures, patches, values].

    Rows are filled with zeros up to the picture with most patches, as by ``ColQwen2Processor``.
    """
    counts = arrays[GRIDS].prod(1)
    pictures = np.split(arrays[PIXELS], np.cumsum(counts)[:-1])
    rows = np.zeros((len(counts), int(counts.max()), arrays[PIXELS].shape[1]), arrays[PIXELS].dtype)
    for row, values in zip(rows, pictures, strict=True):
        row[: len(values)] = values
    return {**arrays, PIXELS: rows}


def _whole_tokens(height: int, width: int, *, edge: int, least: int, most: int) -> tuple[int, int]:
    """Height and width near a picture's, multiples of ``edge``, with ``least`` to ``most`` pixels."""
    if max(height, width) / min(height, width) > _EXTREME:
        raise PosexportError(
            f"a picture of {height} x {width} (height x width) is longer than {_EXTREME} times its shorter edge; cut it"
        )
    rows, columns = round(height / edge) * edge, round(width / edge) * edge
    if rows * columns > most:
        factor = math.sqrt((height * width) / most)
        return tuple(max(edge, math.floor(size / factor / edge) * edge) for size in (height, width))  # type: ignore[return-value]
    if rows * columns < least:
        factor = math.sqrt(least / (height * width))
        return tuple(math.ceil(size * factor / edge) * edge for size in (height, width))  # type: ignore[return-value]
    return rows, columns
