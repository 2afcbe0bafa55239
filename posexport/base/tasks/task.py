"""The record of a task: inputs and outputs of its models, their classes in transformers, and its pipelines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from posexport.base.spec import BATCH, HEIGHT, SEQUENCE, WIDTH

Kind = Literal["text", "images", "audio"]
#: instead of axes: as many as the model has
ANY = ("...",)
#: axes of frequent outputs
OF_BATCH, OF_TOKENS, OF_PIXELS = (BATCH, "labels"), (BATCH, SEQUENCE, "labels"), (BATCH, HEIGHT, WIDTH)


@dataclass(frozen=True)
class PipelineTask:
    """A pipeline of transformers that a bundle of the task has.

    Attributes:
        name: transformers' name.
        implementation: the module in `posexport.run.pipelines` and the class in it, ``module:Class``.
        takes: the kind of its inputs; a bundle of another kind does not have it.
        reads: the input that a bundle must have; empty: any of the kind.
        rules: the field of the manifest that a bundle must have; empty: none.
    """

    name: str
    implementation: str
    takes: Kind = "text"
    reads: str = ""
    rules: str = ""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task.

    Attributes:
        name: a name of ``posexport list tasks``.
        what: the description in the list.
        outputs: axes of the graph's outputs by transformers' names; a model may lack some outputs. `ANY`: models
            differ. Empty: all tensors that the model returns.
        sizes_vary: images have every size that the model takes, in the graph and in the proof; else the one that it
            was trained for.
        ends: suffixes of the names of transformers' classes in ``architectures``; empty: not through transformers.
        auto: transformers' auto class.
        needs: keys that config.json must have, of tasks with the same suffixes.
        pipelines: of its bundles, the default first.
    """

    name: str
    what: str
    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sizes_vary: bool = False
    ends: tuple[str, ...] = ()
    auto: str = "AutoModel"
    needs: tuple[str, ...] = ()
    pipelines: tuple[PipelineTask, ...] = ()
