"""How the folders of other libraries differ from those of transformers. Imports nothing heavy."""

from collections.abc import Mapping
from typing import Any

from posexport.checkpoints.folder_kind import FolderKind, Opened

OPEN_CLIP_CONFIG = "open_clip_config.json"
#: a folder of gliner for the configuration and the tokenizer of an encoder that its file only names
ENCODER = "encoder/"
#: the type of a Chronos folder, by the class in ``architectures``
_CHRONOS = {"ChronosBoltModelForForecasting": "chronos_bolt", "Chronos2Model": "chronos2"}


def _gliner_files(opened: Opened) -> dict[str, Any]:
    from posexport.folders.gliner_tokenizer import tokenizer_files

    return tokenizer_files(opened.files, opened.config, opened.named, ENCODER)


def _with_chronos_type(content: Mapping[str, Any]) -> dict[str, Any]:
    """config.json has transformers' type t5, but a class of chronos-forecasting."""
    listed = content.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else None
    return {**content, "model_type": _CHRONOS[first]} if isinstance(first, str) and first in _CHRONOS else dict(content)


def _chronos_remarks(label: str, content: Mapping[str, Any]) -> list[str]:
    """A remark on a Chronos with transformers' T5: the conversion between values and ids is Python code."""
    if content.get("model_type") != "t5" or "chronos_config" not in content:
        return []
    return [
        f"{label} has a chronos_config: the graphs read and give ids, of which ChronosTokenizer of chronos-forecasting "
        "makes values, and its forecasts are samples of generate"
    ]


def _with_timm_type(content: Mapping[str, Any]) -> dict[str, Any]:
    """config.json names an architecture of timm and its ``pretrained_cfg``; the class is transformers'."""
    if "model_type" in content or "pretrained_cfg" not in content:
        return dict(content)
    name = "TimmWrapperForImageClassification" if content.get("num_classes") else "TimmWrapperModel"
    return {**content, "model_type": "timm_wrapper", "architectures": [name]}


GLINER = FolderKind(
    config="gliner_config.json",
    typed=lambda content: {**content, "model_type": "gliner"},
    decides=(f"{ENCODER}config.json",),
    bundle_files=_gliner_files,
)
CHRONOS = FolderKind(typed=_with_chronos_type, remarks=_chronos_remarks)
TIMM = FolderKind(typed=_with_timm_type, library="timm")
OPEN_CLIP = FolderKind(alone=OPEN_CLIP_CONFIG)
