"""Pictures in every form as arrays [C, H, W]: files, bytes, ``PIL.Image`` and arrays.

As in transformers 5, a file or its bytes are turned upright (EXIF) and made RGB, by dropping an alpha channel; a
``PIL.Image`` and an array stay as they are, and made RGB only where ``do_convert_rgb`` says so, by compositing on a
white background (transformers 4 drops the alpha channel there too).
"""

import base64
import binascii
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.options.several import several
from posexport.errors import PosexportError

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

#: [C, H, W]
Picture = NDArray[Any]
FIRST, LAST = "channels_first", "channels_last"
_TAKEN = "a path, the bytes of a file, a PIL.Image or an array"


def read_pictures(images: Any, *, rgb: bool, layout: str | None) -> list[Picture]:
    """Every picture of ``images`` (one, a list, lists of lists, an array of rank 4) as [C, H, W].

    Args:
        images: what the caller gave.
        rgb: whether a ``PIL.Image`` and an array become RGB (``do_convert_rgb``).
        layout: of arrays, `FIRST` or `LAST`; None: by which axis has 1, 3 or 4 elements, the first one if both.

    Raises:
        PosexportError: no picture, a file that is none, an array of a wrong rank or dtype.
    """
    if layout not in (None, FIRST, LAST):
        raise PosexportError(f"input_data_format is {layout!r}; it must be {FIRST} or {LAST}")
    pictures = [_channels_first(item, rgb=rgb, layout=layout) for item in _flat(images)]
    if not pictures:
        raise PosexportError("no picture was given; give at least one")
    return pictures


def open_picture(image: Any) -> "PilImage":
    """A file, its bytes or a ``PIL.Image`` as an upright RGB picture, as transformers' ``load_image`` returns it."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    if isinstance(image, Image.Image):
        name: str = "a PIL.Image"
    elif isinstance(image, str | Path):
        name, image = _source(str(image))
    elif isinstance(image, bytes | bytearray | memoryview):
        name, image = f"the picture of {len(image):,} bytes", io.BytesIO(image)
    else:
        raise PosexportError(f"a picture is {_TAKEN}; got {type(image).__name__}")
    try:
        opened = image if isinstance(image, Image.Image) else Image.open(image)
        return ImageOps.exif_transpose(opened).convert("RGB")
    except UnidentifiedImageError:
        raise PosexportError(f"{name} is no picture that Pillow can read; give a PNG, JPEG, WebP or the like") from None
    except Image.DecompressionBombError as err:
        raise PosexportError(
            f"{name} has more pixels than Pillow decodes ({err}); make it smaller, or open it yourself with another "
            "PIL.Image.MAX_IMAGE_PIXELS and give the PIL.Image"
        ) from None
    except Exception as err:  # decoders of damaged files fail in any way that Python can
        raise PosexportError(f"{name} cannot be read as a picture ({err}); is the file complete?") from err


def _source(text: str) -> tuple[str, Any]:
    """What to call the picture that ``text`` leads to, and what Pillow opens."""
    if text.startswith(("http://", "https://")):
        raise PosexportError(f"{text} is an address; download the picture and give its path or its bytes")
    if text.startswith("data:image/"):
        try:
            return "the picture in a data: address", io.BytesIO(base64.b64decode(text.partition(",")[2]))
        except (binascii.Error, ValueError) as err:
            raise PosexportError(f"the picture in a data: address is not in base64: {err}") from None
    path = Path(text)
    try:
        if path.is_file():
            return text, path
        reason = "is a folder; give its files one by one" if path.is_dir() else "does not exist"
    except (OSError, ValueError) as err:  # a name that is too long, for one
        reason = f"is no path: {err}"
    raise PosexportError(f"the picture {text[:200]} {reason}")


def _flat(images: Any) -> Iterator[Any]:
    """Every picture of nested lists, iterators, and arrays of rank 4."""
    if (listed := several(images)) is not None:
        for item in listed:
            yield from _flat(item)
        return
    if hasattr(images, "__array__") and not hasattr(images, "getbands"):
        images = np.asarray(images)
    if isinstance(images, np.ndarray) and images.ndim == 4:
        yield from images
    else:
        yield images


def _channels_first(item: Any, *, rgb: bool, layout: str | None) -> Picture:
    from PIL import Image

    if isinstance(item, np.ndarray):
        picture = _from_array(item, layout)
        if rgb:
            picture = _rgb_array(picture)
    else:
        opened = item if isinstance(item, Image.Image) else open_picture(item)
        if rgb:  # also of a file: a palette's transparent colour is still noted, and laid on white
            opened = _rgb(opened)
        array = np.array(opened)
        picture = array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)
    if picture.size == 0:
        raise PosexportError(f"a picture has the shape {list(picture.shape)}; each axis needs at least 1 element")
    return picture


def _rgb(image: "PilImage") -> "PilImage":
    from PIL import Image

    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")


def _from_array(array: NDArray[Any], layout: str | None) -> Picture:
    if array.dtype.kind not in "uifb":
        raise PosexportError(f"a picture is an array of {array.dtype}; give integers from 0 to 255, or real numbers")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise PosexportError("a picture holds NaN or infinity; give finite numbers")
    if array.ndim == 2:
        return array[None]
    if array.ndim != 3:
        raise PosexportError(
            f"a picture has the shape {list(array.shape)}; give [height, width, channels], [channels, height, width] "
            "or [height, width]"
        )
    if layout is None:
        layout = next((name for name, axis in ((FIRST, 0), (LAST, -1)) if array.shape[axis] in (1, 3, 4)), None)
    if layout is None:
        raise PosexportError(
            f"a picture has the shape {list(array.shape)}, where neither the first nor the last axis has 1, 3 or 4 "
            f"elements; say which are its channels by input_data_format ({FIRST} or {LAST})"
        )
    return array if layout == FIRST else np.moveaxis(array, -1, 0)


def _rgb_array(picture: Picture) -> Picture:
    channels = picture.shape[0]
    if channels == 1:
        return np.repeat(picture, 3, axis=0)
    if channels != 4:
        return picture
    if picture.dtype.kind == "f" and (picture.min() < 0.0 or picture.max() > 1.0):
        raise PosexportError(
            f"a picture with an alpha channel has real numbers from {picture.min()} to {picture.max()}; give numbers "
            "from 0 to 1, or integers from 0 to 255"
        )
    white = 1.0 if picture.dtype.kind == "f" else 255
    alpha = picture[3:4] / white
    colours = alpha * picture[:3] + (1 - alpha) * white
    return (colours if white == 1.0 else np.round(colours)).astype(picture.dtype)
