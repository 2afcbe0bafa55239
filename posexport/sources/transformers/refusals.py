"""Checkpoints that are not converted through transformers, and what is said of them."""

from posexport.errors import PosexportError
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families import FAMILIES
from posexport.sources.huggingface.relatives import relative

#: rotations whose frequencies depend on the length of a call, in which a graph's branch would be that of the trace
_BY_LENGTH = ("dynamic", "longrope")


def check(config: Config) -> None:
    """PosexportError for what config.json alone says cannot be converted."""
    kind = config.text("model_type")
    if config.values.get("auto_map"):
        raise PosexportError(
            f"{config.label} says model_type = {kind!r:.60} and names code of its own (auto_map), which is never run; "
            "a checkpoint of a type that transformers itself defines has none: remove auto_map if its code is the same"
        )
    if config.values.get("quantization_config"):
        raise PosexportError(
            f"{config.label} sets quantization_config: its weights are quantised; give the checkpoint that they were "
            "made from, and quantize with --precision"
        )
    for key in ("rope_parameters", "rope_scaling"):
        for name in _rope_types(config.values.get(key)):
            if name in _BY_LENGTH:
                raise PosexportError(
                    f"{config.label} says {key}.rope_type = {name}: its rotation depends on the length of a call, "
                    "which transformers decides while it runs; it is not converted through transformers"
                )


def _rope_types(table: object) -> list[object]:
    if not isinstance(table, dict):
        return []
    own = [table.get("rope_type", table.get("type"))]
    return own + [name for each in table.values() for name in _rope_types(each)]


def unknown(config: Config, version: str) -> str:
    """That neither posexport nor the installed transformers knows the type."""
    kind = config.text("model_type")
    match = relative(kind)
    return (
        f"{config.label} says model_type = {kind!r:.60}, which neither posexport (posexport list families) nor "
        f"transformers {version} defines{f'; the closest is {match}' if match in FAMILIES else ''}"
    )
