"""timm's folders: config.json names an architecture of timm and its ``pretrained_cfg``, and no type of transformers."""

from collections.abc import Mapping
from typing import Any

#: transformers' type for them
TYPE = "timm_wrapper"


def with_type(content: Mapping[str, Any]) -> dict[str, Any]:
    """``content`` of a config.json with the type and the class that transformers takes timm's folders for."""
    if "model_type" in content or "pretrained_cfg" not in content:
        return dict(content)
    name = "TimmWrapperForImageClassification" if content.get("num_classes") else "TimmWrapperModel"
    return {**content, "model_type": TYPE, "architectures": [name]}
