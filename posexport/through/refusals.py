"""Refuses checkpoints that cannot be converted through transformers, with the reason."""

from typing import NoReturn

from posexport.base.system.extras import LIBRARIES, is_installed, require
from posexport.checkpoints.config import Config
from posexport.checkpoints.families.closest import closest
from posexport.checkpoints.families.registry import FAMILIES
from posexport.checkpoints.folder_kind import FolderKind, folder_kinds
from posexport.errors import PosexportError
from posexport.through import library
from posexport.through.types import PROVEN, REFUSED

#: RoPE types with frequencies that depend on the sequence length: a graph would keep the branch of the traced length
_BY_LENGTH = ("dynamic", "longrope")
#: position types of transformers 4.57, which 5 drops or replaces by absolute positions
_RELATIVE = ("relative_key", "relative_key_query")
#: types whose attention is sparse unless config.json says otherwise
_SPARSE = ("big_bird", "bigbird_pegasus")
_INSTALL = f"pip install 'posexport[{LIBRARIES['transformers'][1]}]'"


def check(config: Config) -> list[str]:
    """The remark that ``auto_map`` is ignored, if there is one.

    Raises:
        PosexportError: config.json alone shows that the checkpoint cannot be converted, or transformers is missing.
    """
    kind, says = config.text("model_type"), says_type(config)
    custom_code = bool(config.values.get("auto_map"))
    if custom_code and not _is_implemented(kind, says):
        raise PosexportError(
            f"{says}; the code that its auto_map names is never run, and transformers has no class for this type"
            f"{_hint(kind)}"
        )
    if kind in REFUSED:
        raise PosexportError(f"{says}, which is not converted: {REFUSED[kind]}{_hint(kind)}")
    # settings that transformers or posexport do not support
    if config.values.get("quantization_config"):
        raise PosexportError(
            f"{config.label} sets quantization_config: its weights are quantised; give the checkpoint that they were "
            "made from, and quantize with --precision"
        )
    if config.values.get("attention_type", "block_sparse") == "block_sparse" and kind in _SPARSE:
        raise PosexportError(
            f"{config.label} says attention_type = block_sparse, which transformers leaves for full attention at the "
            "first short text; only attention_type = original_full is converted"
        )
    if kind in FAMILIES and config.values.get("position_embedding_type") in _RELATIVE:
        raise PosexportError(
            f"{config.label} says position_embedding_type = {config.values['position_embedding_type']}, which "
            "transformers 5 does not compute any more; leave out --definition transformers: posexport's definition does"
        )
    _check_rope(config)
    if not is_installed("transformers"):
        _missing(config)
    if library := folder_kinds().get(kind, FolderKind()).library:
        require(f"{config.label} is of {library}, which", library, "PIL")
    if not custom_code:
        return []
    return [
        f"config.json names the author's code (auto_map), which is not run: the model is transformers' class for {kind}"
        ", as with trust_remote_code=False"
    ]


def _is_implemented(kind: str, says: str) -> bool:
    """Whether transformers has a class for this model_type."""
    if kind in PROVEN or kind in FAMILIES:
        return True
    if not is_installed("transformers"):
        return False
    names = library.library(f"{says}, which").models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    return kind in names


def _check_rope(config: Config) -> None:
    for key in ("rope_parameters", "rope_scaling"):
        for name in _rope_types(config.values.get(key)):
            if name in _BY_LENGTH:
                raise PosexportError(
                    f"{config.label} says {key}.rope_type = {name}: its rotation depends on the length of a call, "
                    "which transformers decides while it runs; it is not converted through transformers"
                )


def _rope_types(table: object) -> list[object]:
    """The RoPE type of ``table`` and of tables nested in it, one per kind of layer."""
    if not isinstance(table, dict):
        return []
    types = [table.get("rope_type", table.get("type"))]
    return types + [name for nested in table.values() for name in _rope_types(nested)]


def _missing(config: Config) -> NoReturn:
    kind, says = config.text("model_type"), says_type(config)
    if kind in FAMILIES and (architecture := config.architecture()) is not None:
        says = f"{config.label} says architectures = {architecture}"
    if kind in PROVEN or kind in FAMILIES:
        raise PosexportError(
            f"{says}, which is converted through transformers, and that is not installed: {_INSTALL}{_hint(kind)}"
        )
    raise PosexportError(
        f"{says}; supported are {', '.join(FAMILIES.names)}, and others through transformers: {_INSTALL}{_hint(kind)}"
    )


def unknown(config: Config, version: str) -> str:
    """The message for a type that neither posexport nor the installed transformers defines."""
    return (
        f"{says_type(config)}, which neither posexport (posexport list families) nor transformers {version} "
        f"defines{_hint(config.text('model_type'))}"
    )


def says_type(config: Config) -> str:
    return f"{config.label} says model_type = {config.text('model_type')!r:.60}"


def _hint(kind: str) -> str:
    """The name of the closest family as the end of a sentence; empty for a family and if none is close."""
    match = closest(kind)
    return f"; the closest is {match}" if match and kind not in FAMILIES else ""
