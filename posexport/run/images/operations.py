"""Steps of an image processor on one picture [C, H, W], as transformers' PIL backend computes them."""

from collections.abc import Sequence
from math import ceil

import numpy as np

from posexport.errors import PosexportError
from posexport.run.images.pictures import Picture

#: pixels of a picture that a step makes at most, 8,192 x 8,192: more is a mistake of the settings
MOST_PIXELS = 2**26


def check_area(height: int, width: int) -> None:
    """Raise PosexportError for a picture too large to be meant."""
    if height * width > MOST_PIXELS:
        raise PosexportError(
            f"a picture would get {height} x {width} pixels (height x width), above {MOST_PIXELS:,}; correct the size"
        )


def resize(picture: Picture, height: int, width: int, resample: int) -> Picture:
    """``picture`` with other edges, by Pillow on 8 bits; ``resample``: Pillow's number of the filter.

    Real numbers from 0 to 1 are rounded to 8 bits and come back as float32. Raises PosexportError for values that do
    not fit 8 bits.
    """
    from PIL import Image

    check_area(height, width)
    if picture.shape[0] > 4:
        raise PosexportError(f"a picture with {picture.shape[0]} channels cannot be resized; give 1, 3 or 4 channels")
    scaled = _is_scaled(picture)
    pixels = np.moveaxis(rescale(picture, 255) if scaled else picture, 0, -1).astype(np.uint8)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    resized = np.array(image.resize((width, height), resample=Image.Resampling(resample)))
    resized = resized[None] if resized.ndim == 2 else np.moveaxis(resized, -1, 0)
    return rescale(resized, 1 / 255) if scaled else resized


def resize_floats(picture: Picture, height: int, width: int, resample: int) -> Picture:
    """``picture`` of real numbers with other edges, by Pillow on 32 bits, as float32."""
    from PIL import Image

    check_area(height, width)
    channels = [Image.fromarray(np.ascontiguousarray(channel, dtype=np.float32)) for channel in picture]
    return np.stack([np.array(each.resize((width, height), resample=Image.Resampling(resample))) for each in channels])


def _is_scaled(picture: Picture) -> bool:
    """Whether values are from 0 to 1 and not integers from 0 to 255."""
    if picture.dtype == np.uint8:
        return False
    low, high = picture.min(), picture.max()
    with np.errstate(invalid="ignore"):  # of numbers beyond integers, which are refused below
        whole = np.allclose(picture, picture.astype(int))
    if whole:
        if low >= 0 and high <= 255:
            return False
    elif low >= 0 and high <= 1:
        return True
    raise PosexportError(
        f"a picture has values from {low} to {high}, which cannot be resized as 8 bits; give integers from 0 to 255 or "
        "real numbers from 0 to 1"
    )


def center_crop(picture: Picture, height: int, width: int) -> Picture:
    """The middle of ``picture``, [C, height, width]; where the picture is smaller, zeros around it."""
    check_area(height, width)
    channels, *edges = picture.shape
    cut = []
    for edge, needed in zip(edges, (height, width), strict=True):
        start = (edge - needed) // 2
        # a smaller picture is in the middle of zeros, one nearer to the end where they do not halve
        pad = max(0, ceil((needed - edge) / 2))
        cut.append((start + pad, pad))
    (top, top_pad), (left, left_pad) = cut
    if top_pad or left_pad:
        larger = np.zeros_like(picture, shape=(channels, max(height, edges[0]), max(width, edges[1])))
        larger[:, top_pad : top_pad + edges[0], left_pad : left_pad + edges[1]] = picture
        picture = larger
    return picture[:, top : top + height, left : left + width]


def rescale(picture: Picture, factor: float) -> Picture:
    """Values times ``factor``, in float64, as float32."""
    return (picture.astype(np.float64) * factor).astype(np.float32)


def normalize(picture: Picture, mean: float | Sequence[float], std: float | Sequence[float]) -> Picture:
    """(picture - mean) / std for each channel, in the picture's dtype if that is a real one, else float32."""
    if not np.issubdtype(picture.dtype, np.floating):
        picture = picture.astype(np.float32)
    return (picture - _for_channels(mean, picture, "image_mean")) / _for_channels(std, picture, "image_std")


def _for_channels(values: float | Sequence[float], picture: Picture, setting: str) -> Picture:
    channels = picture.shape[0]
    if isinstance(values, Sequence) and len(values) != channels:
        raise PosexportError(
            f"a picture has {channels} channel{'s' * (channels != 1)} and {setting} {len(values)}; give a path, or a "
            'picture in RGB, such as image.convert("RGB")'
        )
    listed = values if isinstance(values, Sequence) else [values] * channels
    return np.array(listed, dtype=picture.dtype)[:, None, None]


def pad(pictures: Sequence[Picture], height: int, width: int) -> list[Picture]:
    """``pictures`` with zeros below and on the right, up to ``height`` and ``width``."""
    check_area(height, width)
    padded = []
    for picture in pictures:
        _, rows, columns = picture.shape
        if rows > height or columns > width:
            raise PosexportError(
                f"a picture of {rows} x {columns} (height x width) cannot be padded to {height} x {width}; give a "
                "pad_size that is not smaller"
            )
        padded.append(np.pad(picture, ((0, 0), (0, height - rows), (0, width - columns))))
    return padded
