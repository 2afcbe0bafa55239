"""A Hugging Face checkpoint directory as a source."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from posexport.base.options.recipe import DefinitionName
from posexport.checkpoints import dropped
from posexport.checkpoints.families.registry import FAMILIES
from posexport.checkpoints.makers import DEFINED, MAKERS, TRANSFORMERS, Maker, undefined
from posexport.checkpoints.opened import open_checkpoint
from posexport.sources.source import Source


def checkpoint_source(
    directory: Path,
    *,
    task: str | None,
    allow_pickle: bool,
    definition: DefinitionName = "paper",
    drop_weights: Sequence[str] = (),
    name: str | None = None,
    label: str | None = None,
    revision: str | None = None,
    remarks: Sequence[str] = (),
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
        name: what to call it; None: as its folder is called.
        label: what files that leave this machine call it; None: its ``model_type``.
        revision: its commit on the Hugging Face Hub.
        remarks: sentences for the user on the location of the checkpoint.

    Raises:
        PosexportError: the directory, its configuration or its weights cannot be read.
    """
    checkpoint = open_checkpoint(
        directory,
        task=task,
        allow_pickle=allow_pickle,
        released=definition == "released",
        drop_weights=drop_weights,
    )
    model_type = checkpoint.config.values.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    foreign = isinstance(model_type, str) and family is None
    # a class that the type's definition lacks is transformers' too
    lacking = None if family is None or definition == "transformers" else undefined(checkpoint, family)
    usual = TRANSFORMERS if foreign or lacking or definition == "transformers" else DEFINED
    maker: Maker = MAKERS[model_type if foreign and model_type in MAKERS else usual]
    model = maker.make(checkpoint)
    if checkpoint.pooling is not None and checkpoint.pooling.labels:
        model = msgspec.structs.replace(model, labels=checkpoint.pooling.labels)
    return Source.of(
        model,
        name=name or str(directory),
        label=label or model_type,
        revision=revision,
        kind=maker.kind,
        sha256=checkpoint.sha256,
        files=checkpoint.bundle_files,
        text_rules=model.text_rules or checkpoint.text_rules,
        pair_rules=checkpoint.pair_rules(model.task),
        remarks=[
            *remarks,
            *([lacking] if lacking else []),
            *model.remarks,
            *dropped.remarks(checkpoint.dropped),
            *checkpoint.remarks,
        ],
    )
