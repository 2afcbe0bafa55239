"""Opens a checkpoint folder: what its files say, before there is a model.

A model is made of it by posexport's definition of its type (`posexport.checkpoints.defined`) or by another library's
class (`posexport.through`). The adapter, the head (a pooling, or the logits of two tokens as a score) and the rules
for texts are the same for both.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from posexport.base.spec import PairRules, TextRules
from posexport.base.tasks.registry import TASKS, did_you_mean_task
from posexport.checkpoints import (
    adapter,
    bge_m3,
    dropped,
    late_interaction,
    model2vec_folder,
    module_keys,
    scoring,
    sentence_transformers,
    setfit,
    unread_files,
    virtual_tokens,
)
from posexport.checkpoints.adapter import Adapter
from posexport.checkpoints.bundle_files import bundle_files
from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.folder_kind import FolderKind, Opened, config_in, folder_kinds
from posexport.checkpoints.packed.config import layout_of
from posexport.checkpoints.pooling import Pooling
from posexport.checkpoints.scoring import Answers, Ranker, read_cross_encoder
from posexport.checkpoints.sentence_transformers import MODULES
from posexport.checkpoints.virtual_tokens import VirtualTokens
from posexport.checkpoints.weights import Weights, open_file, open_weights, sha256
from posexport.errors import PosexportError

if TYPE_CHECKING:
    from posexport.graph.precision.blocks.stored_rows import StoredRows

#: tasks of graphs that return vectors of texts
EMBEDDING_TASKS = ("sentence-embedding", "token-embedding")
_SCORES = "sequence-classification"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder that is open.

    Attributes:
        folder: the folder that was opened.
        files: the folder of the model: the same one, or the base model's of an adapter.
        below: the folder of config.json and weights in ``files``, empty or ending in ``/``.
        config: config.json.
        task: the requested task, or the one that the adapter or modules.json names; None: decided by the model's class.
        adapter: LoRA weights to merge into the model.
        virtual_tokens: what is put before every row.
        adapters: LoRA weights beside the model, by their names.
        pooling: what makes vectors or scores of the model's states, where modules.json says it.
        answers: the tokens of a LogitScore module of modules.json.
        allow_pickle: whether weights may be .bin files.
        drop_weights: patterns of tensors that are left out.
        remarks: sentences for the user.
    """

    folder: Directory
    files: Directory
    below: str
    config: Config
    task: str | None
    adapter: Adapter | None
    virtual_tokens: VirtualTokens | None
    adapters: Mapping[str, Adapter]
    pooling: Pooling | None
    answers: Answers | None
    allow_pickle: bool
    drop_weights: Sequence[str]
    remarks: list[str]

    @property
    def weights(self) -> Weights:
        """The weights of the model and of its head, without the adapter's and what `drop_weights` leaves out."""
        return self._unpacked[0]

    @property
    def stored_rows(self) -> "StoredRows | None":
        """How the file has weights of 4 bits, of those that were read; None where it has none."""
        return self._unpacked[1]

    @functools.cached_property
    def _unpacked(self) -> "tuple[Weights, StoredRows | None]":
        weights = dropped.without(self._stored, {name for names in self.dropped.values() for name in names})
        layout = layout_of(self.config)
        if layout is None:
            return weights, None
        from posexport.checkpoints.packed.weights import unpacked

        return unpacked(weights, layout)

    @functools.cached_property
    def dropped(self) -> dict[str, list[str]]:
        """The tensors that each pattern of `drop_weights` leaves out."""
        return dropped.matches(self._stored, self.drop_weights)

    @functools.cached_property
    def _stored(self) -> Weights:
        weights = open_weights(self.files, self.below, allow_pickle=self.allow_pickle)
        for folder in [] if self.pooling is None else self.pooling.folders:
            weights = weights.beside(folder, open_weights(self.files, folder, allow_pickle=self.allow_pickle))
        heads = self.pooling.weight_files if self.pooling else model2vec_folder.weight_files(self.files, self.config)
        for name in heads:
            weights = weights.beside(f"{name}/", open_file(self.files, name))
        return weights

    @property
    def sha256(self) -> str:
        """The digest of all files that determine the model's weights and its head."""
        paths = self.weights.files | ({} if self._own is None else self._own.files)
        for name, each in self.adapters.items():
            paths |= {f"adapters/{name}/{file}": path for file, path in each.files.items()}
        head = [] if self.pooling is None else self.pooling.files
        inner = [name for name in self._kind.decides if self.files.find(name) is not None]
        return sha256(self.files, paths, [self.config.name, *head, *inner])

    @property
    def bundle_files(self) -> dict[str, Path]:
        """Tokenizer and configuration files that a bundle takes over, by their names there; an adapter's go first."""
        adapter_files = {} if self._own is None else bundle_files(self.folder, "")
        files = bundle_files(self.files, self.below) | adapter_files
        return self._kind.bundle_files(Opened(self.files, self.config, files))

    @property
    def _own(self) -> Adapter | VirtualTokens | None:
        """What ``folder`` has, where the model is in another one."""
        return self.adapter or self.virtual_tokens

    @property
    def _kind(self) -> FolderKind:
        """What is peculiar to the folder, if it is another library's."""
        return folder_kinds().get(str(self.config.values.get("model_type")), FolderKind())

    @property
    def text_rules(self) -> TextRules | None:
        """How texts become vectors; None for a model of another task."""
        return None if self.pooling is None or self.pooling.scores else self.pooling.rules

    def pair_rules(self, task: str) -> PairRules | None:
        """How pairs of texts become scores, of a model for ``task``; None for other tasks."""
        return scoring.pair_rules(self.files, self.config, self.below, task, answers=self.answers)


def open_checkpoint(
    folder: Path,
    *,
    task: str | None = None,
    allow_pickle: bool = False,
    released: bool = False,
    drop_weights: Sequence[str] = (),
    adapters: Mapping[str, Path] = MappingProxyType({}),
) -> Checkpoint:
    """The checkpoint in ``folder``, for ``task`` or the one that its files name. Executes nothing from the folder.

    ``released``: compute what transformers' code does where it differs from the paper (docs/papers-and-code.md).
    ``drop_weights``: patterns of tensors that are left out. ``adapters``: folders of LoRA weights to keep beside the
    model.

    Raises:
        PosexportError: the folder or its configuration cannot be read.
    """
    if task is not None and task not in TASKS:
        raise PosexportError(f"unknown task {task!r}; {did_you_mean_task(task, TASKS, 'known: ' + ', '.join(TASKS))}")
    files = opened = Directory(folder)
    # the model of an adapter is in another folder
    virtual = virtual_tokens.read(files, allow_pickle=allow_pickle)
    adapted = adapter.read(files, allow_pickle=allow_pickle) if virtual is None else None
    own = virtual or adapted
    if virtual is not None and adapters:
        raise PosexportError(f"{folder} has virtual tokens, which --adapters cannot be beside; leave one of them out")
    if own is not None:
        files, task = own.base, task or own.task
    beside = {name: adapter.read_beside(at, files, allow_pickle=allow_pickle) for name, at in adapters.items()}
    # the head that modules.json describes
    static = model2vec_folder.is_model2vec(files)
    modules = None if static else _modules(files, task, allow_pickle=allow_pickle)
    ranker = modules or Ranker(below="", task=None)
    config = Config(files, config_in(files, ranker.below), released=released)
    pooling = ranker.pooling
    if modules is None and task in (None, "token-embedding") and config.architecture() == late_interaction.ARCHITECTURE:
        pooling = late_interaction.of_colbert(files, config)
    if allow_pickle and _may_be_hybrid(modules, task) and bge_m3.files_of(files):
        pooling = bge_m3.with_projections(pooling, files, config)
    task = task or (ranker.task if pooling is None else pooling.task)
    if task in EMBEDDING_TASKS and not static and (pooling is None or pooling.task != task):
        raise PosexportError(
            f"{config.label}: the task {task} needs a {MODULES} of sentence-transformers that says how, and "
            f"{'there is none' if pooling is None else f'this one is for {pooling.task}'}; use --task features for the "
            "transformer alone"
        )
    remarks = module_keys.remarks(files) if pooling is not None or modules is not None else []
    remarks += [text for kind in folder_kinds().values() for text in kind.remarks(config.label, config.values)]
    read = [path for each in (own, *beside.values()) if each is not None for path in each.files.values()]
    if pooling is not None:
        read += [files.path / name for name in (*pooling.files, *pooling.weight_files, *pooling.replaced_files)]
    remarks += unread_files.remarks(_names(files, opened, read))
    if own is not None:
        remarks.append(own.remark)
    return Checkpoint(
        folder=opened,
        files=files,
        below=ranker.below,
        config=config,
        task=task,
        adapter=adapted,
        virtual_tokens=virtual,
        adapters=beside,
        pooling=pooling,
        answers=ranker.answers,
        allow_pickle=allow_pickle,
        drop_weights=drop_weights,
        remarks=remarks,
    )


def _modules(files: Directory, task: str | None, *, allow_pickle: bool) -> Ranker | None:
    """What modules.json says of ``task``; None without the file, and for tasks that it is not about."""
    if task in (None, _SCORES) and (classifier := setfit.read(files, allow_pickle=allow_pickle)) is not None:
        return Ranker(below=classifier.below, task=classifier.task, pooling=classifier)
    if task in (None, scoring.TEXT_RANKING, _SCORES) and (ranker := read_cross_encoder(files)) is not None:
        return ranker if task is None or ranker.task in (None, task) else None
    if task in (None, *EMBEDDING_TASKS) and files.find(MODULES) is not None and not scoring.is_cross_encoder(files):
        pooling = sentence_transformers.read(files)
        return Ranker(below=pooling.below, task=pooling.task, pooling=pooling)
    return None


def _may_be_hybrid(modules: Ranker | None, task: str | None) -> bool:
    """Whether tokens can have weights and vectors: beside the vector of a text, or where no file names a head."""
    if modules is None:
        return task in (None, "sentence-embedding")
    return modules.pooling is not None and bool(modules.pooling.modes) and not modules.pooling.scores


def _names(files: Directory, opened: Directory, read: Iterable[Path]) -> set[str]:
    """Names of the files in the model's folder and in an adapter's, without those that are read."""
    folders = {files.path, opened.path}
    return {name for folder in folders for name in unread_files.names_in(folder, read=read)}
