"""Which ``model_type`` to add to a config.json that has none, by the names and shapes of the tensors."""

import copy
from collections.abc import Callable, Iterator

from posexport.checkpoints import assign, scoring
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.families.registry import FAMILIES
from posexport.checkpoints.opened import Checkpoint
from posexport.errors import PosexportError


def sentence(checkpoint: Checkpoint) -> str:
    """The error with the line to add; with all types where the tensors fit none."""
    label, names = checkpoint.config.label, FAMILIES.names
    if not (types := list(_fitting(checkpoint))):
        return f"{label} has no model_type; it must be one of {', '.join(names)}"
    first, *further = types
    same = f" ({', '.join(further)} have the same tensors: take the one that it is)" if further else ""
    tensor = next(filter(_begins(FAMILIES[first]), checkpoint.weights.shapes))
    return (
        f'{label} has no model_type; its tensors ({tensor} ...) are those of {first}: add the line "model_type": '
        f'"{first}",{same}'
    )


def _fitting(checkpoint: Checkpoint) -> Iterator[str]:
    """The types with a definition that has exactly the checkpoint's tensors."""
    for name in FAMILIES.names:
        family = FAMILIES[name]
        begins = any(map(_begins(family), checkpoint.weights.shapes))
        if begins and any(_fits(checkpoint, family, task) for task in family.all_tasks):
            yield name


def _begins(family: Family) -> Callable[[str], bool]:
    """Whether a tensor's name begins as in the family's files, with its prefix or without."""
    known = (*family.roots, *([f"{family.prefix}."] if family.prefix else []))
    return lambda name: name.startswith(known)


def _fits(checkpoint: Checkpoint, family: Family, task: str) -> bool:
    config = copy.copy(checkpoint.config)
    config.values = copy.copy(config.values)
    config.values["model_type"] = family.model_type
    config.spellings, config.remarks = family.spellings, []
    try:
        built = family.build(config, scoring.built_as(task, family))
        assign.check(built, checkpoint.weights, assign.names_of(checkpoint.weights, family), family, task=task)
    except PosexportError:
        return False
    return True
