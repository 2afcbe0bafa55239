"""LLaVA's image processor: pictures are padded to a square in the colour of image_mean first, if do_pad is true."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.images import operations
from posexport.images.pictures import Picture
from posexport.images.plain import CLIPImageProcessor
from posexport.images.processor import stacked


class LlavaImageProcessor(CLIPImageProcessor, frozen=True, kw_only=True):
    """Image processor with the defaults of llava."""

    UNREAD = frozenset({"pad_size"})

    do_pad: bool | None = False

    def arrays(self, pictures: Sequence[Picture]) -> dict[str, NDArray[Any]]:
        """Without the padding of a batch, which ``do_pad`` means elsewhere."""
        return {"pixel_values": stacked([self.one(picture) for picture in pictures])}

    def one(self, picture: Picture) -> Picture:
        """A picture made square, then through all other steps."""
        return super().one(self._square(picture) if self.do_pad else picture)

    def _square(self, picture: Picture) -> Picture:
        channels, height, width = picture.shape
        if height == width:
            return picture
        # of a single number as mean, and of none, the library pads with black
        mean = self.image_mean if isinstance(self.image_mean, tuple) else (0,) * channels
        if len(mean) != channels:
            raise PosexportError(f"a picture has {channels} channels and image_mean {len(mean)}; give a picture in RGB")
        edge = max(height, width)
        operations.check_area(edge, edge)
        square = np.empty((channels, edge, edge), dtype=picture.dtype)
        square[:] = np.array([int(value * 255) for value in mean])[:, None, None]
        top, left = (edge - height) // 2, (edge - width) // 2
        square[:, top : top + height, left : left + width] = picture
        return square
