"""The image processor of a folder, from the files that transformers reads it from, and what they say in vain."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posexport.errors import PosexportError
from posexport.run.images import open_clip, timm
from posexport.run.images.processor import ImageProcessor
from posexport.run.images.registry import BY_MODEL_TYPE, PROCESSORS

PROCESSOR, PREPROCESSOR, CONFIG = "processor_config.json", "preprocessor_config.json", "config.json"
#: files with the settings of an image processor, and the one with the model type
FILES = (PROCESSOR, PREPROCESSOR, CONFIG, open_clip.FILE)
_TYPE, _OLDER_TYPE = "image_processor_type", "feature_extractor_type"
#: settings that no feature extractor of sound has
_OF_PICTURES = {"do_resize", "do_rescale", "do_center_crop", "do_convert_rgb", "size", "image_mean", "image_std"}
#: names of classes, and settings of outputs and of the torchvision backend
_WITHOUT_EFFECT = {
    _TYPE,
    _OLDER_TYPE,
    "processor_class",
    "return_tensors",
    "device",
    "disable_grouping",
    "image_seq_length",
    "_valid_processor_keys",
    "_valid_kwargs_names",
    "use_fast",
    "backend",
    "model_input_names",
}


def read_processor(contents: Mapping[str, bytes], folder: str) -> ImageProcessor | None:
    """The processor that the files of a folder describe; None where they describe none.

    Args:
        contents: the bytes of the folder's `FILES`, by name.
        folder: what errors call it; "": the files alone are named.

    Raises:
        PosexportError: a file that is no JSON, a class that is not known, settings that are wrong or contradict.
    """
    described = _settings(contents, folder)
    if described is None:
        return None
    file, settings = described
    place = str(Path(folder, file))
    name = _class_name(settings, contents, folder)
    if name not in PROCESSORS:
        raise PosexportError(
            f"{place} names {name}, which prepares pictures in a way that posexport does not know; it knows "
            f"{', '.join(sorted(PROCESSORS))}; prepare pixel_values with transformers and give them to run"
        )
    default = PROCESSORS[name]()
    known = {key: value for key, value in settings.items() if key in default.__struct_fields__ and value is not None}
    return default.changed(known, origin=place)


def remarks(files: Mapping[str, Path]) -> list[str]:
    """Sentences for settings of pictures in a checkpoint's ``files`` (paths by name) that no processor follows.

    None for files that describe no image processor.
    """
    contents = {name: files[name].read_bytes() for name in FILES if name in files}
    try:
        processor = read_processor(contents, "")
        described = _settings(contents, "")
    except PosexportError as err:
        return [f"pictures cannot be prepared by this bundle, it runs arrays: {err}"]
    if processor is None or described is None:
        return []
    # defaults that differ between versions of transformers, then settings that nothing reads
    file, settings = described
    kind = type(processor)
    silent = _WITHOUT_EFFECT | kind.WITHOUT_EFFECT
    followed = set(kind.__struct_fields__) - kind.UNREAD
    said = [
        f"{file} does not say {key}; transformers 4.57 takes {_short(older)} and 5.24, which is followed, "
        f"{_short(getattr(kind(), key))}"
        for key, older in kind.OLDER_DEFAULTS.items()
        if settings.get(key) is None
    ]
    for key, value in settings.items():
        if key in silent or key in followed or not value or _is_default(kind, key, value):
            continue
        if key == "data_format":
            if value != "channels_first":
                said.append(f"{file} says {key} = {value!r}; the graph takes channels_first, and pictures are given so")
        elif key == "auto_map":
            said.append(f"{file} names code of the checkpoint's author (auto_map), which is not run; {_says(kind)}")
        else:
            said.append(f"{file} says {key} = {_short(value)}, which {kind.__name__} does not read")
    return said


def _is_default(kind: type[ImageProcessor], key: str, value: Any) -> bool:
    """Whether a setting that is not read has the value that every folder of the class has."""
    return key in kind.UNREAD and getattr(kind(), key) == value


def _says(kind: type[ImageProcessor]) -> str:
    return f"pictures are prepared as by {kind.__name__}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _settings(contents: Mapping[str, bytes], folder: str) -> tuple[str, dict[str, Any]] | None:
    """The file that describes the image processor, and its content; processor_config.json has priority."""
    if content := _object(contents, open_clip.FILE, folder):  # in bundles of open_clip's own folders alone
        return open_clip.FILE, open_clip.settings_of(content, str(Path(folder, open_clip.FILE)))
    nested = _object(contents, PROCESSOR, folder).get("image_processor")
    if isinstance(nested, dict):
        return PROCESSOR, nested
    settings = _object(contents, PREPROCESSOR, folder)
    if _is_of_pictures(settings):
        return PREPROCESSOR, settings
    stated = _object(contents, CONFIG, folder).get(timm.KEY)
    return (CONFIG, timm.settings_of(stated, str(Path(folder, CONFIG)))) if isinstance(stated, dict) else None


def _is_of_pictures(settings: Mapping[str, Any]) -> bool:
    """Whether a preprocessor_config.json describes an image processor, and no feature extractor of sound."""
    older = settings.get(_OLDER_TYPE)
    return (
        _TYPE in settings
        or (isinstance(older, str) and _base(older) in PROCESSORS)
        or not _OF_PICTURES.isdisjoint(settings)
    )


def _class_name(settings: Mapping[str, Any], contents: Mapping[str, bytes], folder: str) -> str:
    for key in (_TYPE, _OLDER_TYPE):
        if isinstance(settings.get(key), str):
            return _base(settings[key])
    config = _object(contents, CONFIG, folder)
    if isinstance(config.get(_TYPE), str):
        return _base(config[_TYPE])
    model_type = config.get("model_type")
    if model_type in BY_MODEL_TYPE:
        return BY_MODEL_TYPE[model_type]
    raise PosexportError(
        f"{Path(folder, PREPROCESSOR)} names no {_TYPE}, and none is known for model_type {model_type!r}; add the "
        "class's name, such as ViTImageProcessor"
    )


def _base(name: str) -> str:
    """``ViTImageProcessor`` of the names that versions and backends of transformers give to that class."""
    return name.replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")


def _object(contents: Mapping[str, bytes], name: str, folder: str) -> dict[str, Any]:
    if name not in contents:
        return {}
    try:
        content = json.loads(contents[name])
    except (ValueError, RecursionError) as err:
        raise PosexportError(f"{Path(folder, name)} is no JSON ({err}); replace it by the checkpoint's") from None
    if not isinstance(content, dict):
        raise PosexportError(f"{Path(folder, name)} holds no JSON object; replace it by the checkpoint's")
    return content
