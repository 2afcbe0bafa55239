"""A Hugging Face checkpoint directory as a source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec

from posexport.base.options.recipe import DefinitionName
from posexport.checkpoints import dropped
from posexport.checkpoints.families.registry import FAMILIES
from posexport.checkpoints.makers import DEFINED, MAKERS, TRANSFORMERS, Maker, undefined
from posexport.checkpoints.opened import Checkpoint, open_checkpoint
from posexport.checkpoints.virtual_tokens import put_before
from posexport.errors import PosexportError
from posexport.sources.source import Source


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a checkpoint is from.

    Attributes:
        name: what to call it; None: as its folder is called.
        label: what files that leave this machine call it; None: its ``model_type``.
        revision: its commit on the Hugging Face Hub.
        remarks: sentences for the user on it.
    """

    name: str | None = None
    label: str | None = None
    revision: str | None = None
    remarks: Sequence[str] = ()


def checkpoint_source(
    directory: Path,
    *,
    task: str | None,
    allow_pickle: bool,
    definition: DefinitionName = "paper",
    drop_weights: Sequence[str] = (),
    adapters: Mapping[str, Path] = MappingProxyType({}),
    place: Place = Place(),
) -> Source:
    """The checkpoint in ``directory``, for ``task`` or the one that its files name.

    Needs little more memory than the float32 weights. Executes nothing from the directory.

    Args:
        directory: its folder.
        task: of ``posexport list tasks``; None: the one that its files name.
        allow_pickle: weights may be .bin files.
        definition: ``released`` computes what transformers' code does where it differs from the paper
            (docs/papers-and-code.md), ``transformers`` takes that library's model of types that posexport defines too.
            A class or task that a definition lacks is always that library's.
        drop_weights: patterns of tensors that are left out.
        adapters: folders of LoRA adapters, by the names that rows choose them by.
        place: where it is from.

    Raises:
        PosexportError: the directory, its configuration or its weights cannot be read.
    """
    checkpoint = open_checkpoint(
        directory,
        task=task,
        allow_pickle=allow_pickle,
        released=definition == "released",
        drop_weights=drop_weights,
        adapters=adapters,
    )
    maker, lacking = _maker(checkpoint, definition)
    if adapters and maker not in (MAKERS[DEFINED], MAKERS[TRANSFORMERS]):
        raise PosexportError(
            f"--adapters is for models of transformers, {checkpoint.config.label} is of another library: leave it out"
        )
    model = maker.make(checkpoint)
    if checkpoint.virtual_tokens is not None:
        model = put_before(model, checkpoint.virtual_tokens)
    if checkpoint.pooling is not None and checkpoint.pooling.labels:
        model = msgspec.structs.replace(model, labels=checkpoint.pooling.labels)
    dropped_weights = dropped.remarks(checkpoint.dropped)
    packed = [] if checkpoint.stored_rows is None else [_of_4_bits(len(checkpoint.stored_rows))]
    return Source.of(
        model,
        name=place.name or str(directory),
        label=place.label or checkpoint.config.values.get("model_type"),
        revision=place.revision,
        kind=maker.kind,
        sha256=checkpoint.sha256,
        files=checkpoint.bundle_files,
        stored_rows=checkpoint.stored_rows if checkpoint.adapter is None else None,
        text_rules=model.text_rules or checkpoint.text_rules,
        pair_rules=checkpoint.pair_rules(model.task),
        remarks=[*place.remarks, *lacking, *model.remarks, *packed, *dropped_weights, *checkpoint.remarks],
    )


def _of_4_bits(count: int) -> str:
    return (
        f"{count} weights have 4 bits in the file; --precision int4 keeps them, other precisions take their real values"
    )


def _maker(checkpoint: Checkpoint, definition: DefinitionName) -> tuple[Maker, list[str]]:
    """What makes the model, and why it is not the definition of a type that has one."""
    model_type = checkpoint.config.values.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if isinstance(model_type, str) and family is None:  # a type of another library, or of transformers alone
        return MAKERS.get(model_type) or MAKERS[TRANSFORMERS], []
    if definition == "transformers":
        return MAKERS[TRANSFORMERS], []
    lacking = None if family is None else undefined(checkpoint, family)
    return (MAKERS[DEFINED], []) if lacking is None else (MAKERS[TRANSFORMERS], [lacking])
