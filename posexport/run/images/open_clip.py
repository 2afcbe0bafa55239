"""open_clip's evaluation transform of images, by ``preprocess_cfg`` in open_clip_config.json (library 3.3.0)."""

from collections.abc import Mapping
from typing import Any

from posexport.errors import PosexportError
from posexport.run.images import processor
from posexport.run.images.timm import TimmWrapperImageProcessor

#: the configuration, which names an architecture of the library
FILE = "open_clip_config.json"
#: open_clip's names of filters; it takes the third for bicubic where nothing is drawn
_FILTERS = {"bilinear": processor.BILINEAR, "bicubic": processor.BICUBIC, "random": processor.BICUBIC}
#: pixels along an edge where the configuration says none
_EDGE = 224


def settings_of(content: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The settings of a `TimmWrapperImageProcessor`, which crops as open_clip does.

    Args:
        content: of open_clip_config.json. The size is the model's, as in the library, whatever ``preprocess_cfg`` says.
        place: names the file in errors.

    Raises:
        PosexportError: open_clip prepares pictures in a way that posexport does not know.
    """
    stated, model = content.get("preprocess_cfg") or {}, content.get("model_cfg") or {}
    size = (model.get("vision_cfg") or {}).get("image_size") or _EDGE
    height, width = size if isinstance(size, list) and len(size) == 2 else (size, size)
    name, mode = stated.get("interpolation") or "bicubic", stated.get("resize_mode") or "shortest"
    if name not in _FILTERS or mode not in ("shortest", "squash") or stated.get("mode", "RGB") != "RGB":
        raise PosexportError(
            f"{place}: preprocess_cfg says mode = {stated.get('mode', 'RGB')!r:.20}, interpolation = {name!r:.20}, "
            f"resize_mode = {mode!r:.20}; posexport prepares RGB by {', '.join(_FILTERS)}, in resize_mode shortest or "
            "squash; prepare pixel_values with open_clip and give them to run"
        )
    if mode == "shortest" and height != width:
        raise PosexportError(
            f"{place}: the images are {height} x {width} (height x width), and posexport crops the middle of pictures "
            "to squares alone; prepare pixel_values with open_clip and give them to run"
        )
    whole = {"height": height, "width": width}
    return {
        "image_processor_type": TimmWrapperImageProcessor.__name__,
        "size": whole if mode == "squash" else {"shortest_edge": height},
        "default_to_square": mode == "squash",
        "resample": _FILTERS[name],
        "do_center_crop": mode == "shortest",
        "crop_size": whole,
        "image_mean": _channels(stated.get("mean") or processor.OPENAI_CLIP_MEAN),
        "image_std": _channels(stated.get("std") or processor.OPENAI_CLIP_STD),
    }


def _channels(stated: Any) -> list[Any]:
    """A number for each channel; the library takes one number for all of them."""
    return list(stated) if isinstance(stated, list | tuple) else [stated] * 3
