"""The image processor that most are variants of: resize, crop, rescale, normalize, pad."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.images import operations
from posexport.run.images.pictures import Picture, read_pictures
from posexport.run.images.sizes import Size, SizeSetting, read_size, resized

#: Pillow's numbers of its filters, which configurations name
NEAREST, LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = range(6)
IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGENET_STANDARD_MEAN = IMAGENET_STANDARD_STD = (0.5, 0.5, 0.5)
OPENAI_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPENAI_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

Channels = float | tuple[float, ...]
#: how errors call where a setting of the caller's comes from
CALL = "the settings given"


def default_size(**edges: int) -> Any:
    """The default of a size: a new dictionary for every processor."""
    return msgspec.field(default_factory=lambda: dict(edges))


class ImageProcessor(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of preprocessor_config.json by their names; called with pictures, it returns the arrays of a graph.

    A subclass sets the defaults of a class of transformers, and overrides the step that the class computes in another
    way.
    """

    #: settings that this class of transformers accepts and does not read; `remarks` names them
    UNREAD: ClassVar[frozenset[str]] = frozenset()
    #: further settings of the class that change nothing for pictures
    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset()
    #: defaults of transformers 4.57 that differ from 5.24, which is followed
    OLDER_DEFAULTS: ClassVar[Mapping[str, Any]] = {}

    do_convert_rgb: bool | None = None
    do_resize: bool | None = None
    size: SizeSetting | None = None
    default_to_square: bool | None = True
    resample: int | None = BILINEAR
    do_center_crop: bool | None = None
    crop_size: SizeSetting | None = None
    do_rescale: bool | None = None
    rescale_factor: float | None = 1 / 255
    do_normalize: bool | None = None
    image_mean: Channels | None = None
    image_std: Channels | None = None
    do_pad: bool | None = None
    pad_size: SizeSetting | None = None
    input_data_format: str | None = None

    def __call__(self, images: Any) -> dict[str, NDArray[Any]]:
        """``pixel_values`` [pictures, channels, height, width] in float32, and what else the class computes."""
        pictures = read_pictures(images, rgb=bool(self.do_convert_rgb), layout=self.input_data_format)
        return self.arrays(pictures)

    def arrays(self, pictures: Sequence[Picture]) -> dict[str, NDArray[Any]]:
        """The arrays of pictures [C, H, W]."""
        prepared = [self.one(picture) for picture in pictures]
        if self.do_pad:
            prepared = operations.pad(prepared, *self._padded(prepared))
        return {"pixel_values": stacked(prepared)}

    def one(self, picture: Picture) -> Picture:
        """A picture through all steps but padding, in the order of transformers' PIL backend."""
        if self.do_resize:
            picture = self.resize(picture)
        if self.do_center_crop:
            picture = self.center_crop(picture)
        return self.normalized(picture)

    def resize(self, picture: Picture) -> Picture:
        """``picture`` resized to `size`."""
        return self.resized_to(picture, resized(picture.shape, self.sizes("size")))

    def resized_to(self, picture: Picture, edges: tuple[int, int]) -> Picture:
        """``picture`` with height and width ``edges``, by the filter of `resample`."""
        return operations.resize(picture, *edges, self.filter)

    @property
    def filter(self) -> int:
        """Pillow's number of the filter for resizing."""
        return BILINEAR if self.resample is None else self.resample

    def center_crop(self, picture: Picture) -> Picture:
        """The middle of ``picture``, as large as `crop_size`."""
        return operations.center_crop(picture, *self._edges("crop_size"))

    def normalized(self, picture: Picture) -> Picture:
        """``picture`` rescaled and normalized, each if the settings say so."""
        if self.do_rescale and self.rescale_factor is not None:
            picture = operations.rescale(picture, self.rescale_factor)
        if self.do_normalize and self.image_mean is not None and self.image_std is not None:
            picture = operations.normalize(picture, self.image_mean, self.image_std)
        return picture

    def sizes(self, setting: str) -> Size:
        """The size of that name, checked."""
        value = getattr(self, setting)
        return read_size(value, setting, square=setting != "size" or bool(self.default_to_square))

    def _edges(self, setting: str) -> tuple[int, int]:
        size = self.sizes(setting)
        if "height" not in size:
            raise PosexportError(f"{setting} is {dict(size)}; give height and width")
        return size["height"], size["width"]

    def _padded(self, pictures: Sequence[Picture]) -> tuple[int, int]:
        if self.pad_size is not None:
            return self._edges("pad_size")
        return max(each.shape[1] for each in pictures), max(each.shape[2] for each in pictures)

    def changed(self, settings: Mapping[str, Any], origin: str = CALL) -> Self:
        """This processor with other settings, checked; ``origin``: what errors call the place that they come from.

        Raises PosexportError for a name that is no setting, a value of another kind, settings that contradict.
        """
        if unknown := [name for name in settings if name not in self.__struct_fields__]:
            raise PosexportError(
                f"{unknown[0]} is no setting of {type(self).__name__}; it has {', '.join(self.__struct_fields__)}"
            )
        current = {name: getattr(self, name) for name in self.__struct_fields__}
        try:
            changed = msgspec.convert({**current, **self.completed(settings)}, type(self))
        except msgspec.ValidationError as err:
            raise PosexportError(f"a setting of pictures in {origin} is wrong: {err}") from None
        changed.check()
        return changed

    def completed(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """``settings`` with what names of older versions mean."""
        return settings

    def check(self) -> None:
        """Raise PosexportError for a step without the settings that it needs, or with contradicting ones."""
        needed = {
            "do_resize": ("size", "resample"),
            "do_center_crop": ("crop_size",),
            "do_rescale": ("rescale_factor",),
            "do_normalize": ("image_mean", "image_std"),
        }
        for step, settings in needed.items():
            for setting in settings:
                if getattr(self, step) and getattr(self, setting) is None:
                    raise PosexportError(f"{step} is true and {setting} is none; give {setting}, or {step} false")
        for setting in ("size", "crop_size", "pad_size"):
            if getattr(self, setting) is not None:
                self.sizes(setting)
        if self.resample is not None and self.resample not in range(6):
            raise PosexportError(f"resample is {self.resample}; Pillow's filters are 0 to 5 (2 bilinear, 3 bicubic)")
        if self.do_normalize and 0 in np.ravel(np.asarray(self.image_std, dtype=np.float64)):
            raise PosexportError("image_std holds 0, by which nothing can be divided; give other values")


def stacked(pictures: Sequence[Picture]) -> NDArray[np.float32]:
    """Pictures as one batch in float32. Raises PosexportError if they differ in size."""
    shapes = sorted({picture.shape for picture in pictures})
    if len(shapes) > 1:
        listed = " and ".join("x".join(map(str, shape)) for shape in shapes[:2])
        raise PosexportError(
            f"pictures of one batch have different shapes once they are prepared ({listed}); give them one by one, or "
            "a size with height and width"
        )
    return np.stack(pictures).astype(np.float32)
