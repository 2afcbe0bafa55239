"""Base class of the pipelines: one input returns one result, a list a list, a generator a generator."""

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.options.check import did_you_mean
from posexport.base.options.several import several
from posexport.errors import PosexportError
from posexport.run.batches import Batches
from posexport.run.bundle.manifest import Manifest
from posexport.run.bundle.read import json_object
from posexport.run.session import Session

Floats = NDArray[np.floating[Any]]
#: axes of an array of several pictures
_PICTURES = 4


def check_threshold(threshold: float) -> None:
    """PosexportError for a threshold that is no share."""
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise PosexportError(f"threshold must be a number from 0 to 1, got {threshold!r:.40}")


#: default special tokens of BERT and RoBERTa, for tokenizer files without names of special tokens
USUAL = {
    "mask_token": ("[MASK]", "<mask>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "unk_token": ("[UNK]", "<unk>"),
    "pad_token": ("[PAD]", "<pad>"),
}


class ModelFiles:
    """The JSON files of the bundle in ``directory``."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory, self._manifest = directory, manifest

    def json(self, name: str) -> dict[str, Any]:
        """The object in a file; empty if the bundle does not have the file."""
        return json_object(self._directory, self._manifest, name)

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        return self.json("config.json")

    @functools.cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        return self.json("tokenizer_config.json")

    def special_token(self, name: str) -> str | None:
        """A special token by transformers' name, e.g. ``mask_token``; None if the files do not name it.

        Files from before 2020 name no token at all (`names_tokens`); the caller then uses `USUAL`, the defaults of
        BERT's and RoBERTa's tokenizer classes.
        """
        for stated in (self.tokenizer_config, self.json("special_tokens_map.json")):
            token = stated.get(name)
            content = token.get("content") if isinstance(token, dict) else token
            if isinstance(content, str):
                return content
        return None

    @property
    def names_tokens(self) -> bool:
        """Whether any special token is named."""
        stated = {*self.tokenizer_config, *self.json("special_tokens_map.json")}
        return any(name.endswith("_token") for name in stated if not name.startswith("add_"))

    def task_parameters(self, task: str) -> dict[str, Any]:
        """What ``task_specific_params`` of config.json says of ``task``."""
        stated = self.config.get("task_specific_params")
        parameters = stated.get(task) if isinstance(stated, dict) else None
        return parameters if isinstance(parameters, dict) else {}

    def labels(self, count: int) -> list[str]:
        """The names of ``count`` labels by ``id2label``; ``LABEL_0`` and so on where it says nothing, as the library.

        Raises PosexportError where it names other labels than the model has.
        """
        stated = self.config.get("id2label")
        if not isinstance(stated, dict) or not stated:
            return [f"LABEL_{number}" for number in range(count)]
        try:
            names = {int(number): str(name) for number, name in stated.items()}
            return [names[number] for number in range(count)]
        except (KeyError, ValueError) as err:
            raise PosexportError(
                f"id2label of {self._directory / 'config.json'} names {len(stated)} labels, and the model has {count}; "
                "correct it and convert again"
            ) from err


class Pipeline(ABC):
    """Counterpart of ``transformers.Pipeline`` for an open bundle.

    A task is a subclass: `answers` computes the results of a list of inputs, and its keyword-only arguments are the
    task's options, under transformers' names. Options of the constructor are the defaults of every call.

    Attributes:
        task: transformers' name of the task.
        session: the open bundle.
        files: configuration files of the checkpoint that the bundle carries.
    """

    def __init__(self, session: Session, task: str, *, batch_size: int | None = None, **options: Any) -> None:
        self.task = task
        self.session = session
        self.files = ModelFiles(session.directory, session.manifest)
        self._batch_size = batch_size
        self._options = self._checked(options)
        self.setup()

    def __repr__(self) -> str:
        return f"<posexport pipeline {self.task}: {self.session.directory.name}>"

    def __call__(self, inputs: Any, *, batch_size: int | None = None, **options: Any) -> Any:
        """Returns the result for ``inputs``: a list for a list, a generator for a generator, otherwise one result.

        ``batch_size``: inputs of one call of the model at most; default: as many as 4,096 tokens allow, and one for a
        generator. Other arguments are the task's options. Raises PosexportError for what the task does not take.
        """
        called = self._checked(options)
        options = {**self._options, **called}
        batches = Batches(batch_size=self._batch_size if batch_size is None else batch_size)
        inputs = self.grouped(as_inputs(inputs), options)
        if isinstance(inputs, list):
            return self.answers(inputs, batches, **options) if inputs else []
        if isinstance(inputs, Iterator) or is_torch_dataset(inputs):
            return self._lazily(inputs, batches, options)
        return self.alone(inputs, self.answers([inputs], batches, **options)[0], called)

    @abstractmethod
    def answers(self, items: list[Any], batches: Batches, *args: Any, **options: Any) -> list[Any]:
        """Returns one result for each of ``items``, in their order."""

    def setup(self) -> None:  # noqa: B027  # most tasks read nothing
        """Reads what the task needs once; raises PosexportError if the bundle does not have the task."""

    def truncating(self) -> dict[str, Any]:
        """The options that cut inputs that are too long; none where the task always does."""
        return {"truncation": True} if "truncation" in inspect.signature(self.answers).parameters else {}

    def grouped(self, inputs: Any, options: dict[str, Any]) -> Any:
        """``inputs`` as an input, a list or an iterator of inputs. Chats, which are lists themselves, differ here."""
        return inputs

    def alone(self, item: Any, answer: Any, called: dict[str, Any]) -> Any:
        """Converts the result of a single input, not in a list; ``called``: options of the call without defaults."""
        return answer

    def _lazily(self, inputs: Iterable[Any], batches: Batches, options: dict[str, Any]) -> Iterator[Any]:
        waiting: list[Any] = []
        # a map-style data set of PyTorch has a length, and indexing need not end at an IndexError
        indexed: Any = inputs if hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__") else None
        items = inputs if indexed is None else (indexed[number] for number in range(len(indexed)))
        for item in items:
            waiting.append(item)
            if len(waiting) == (batches.batch_size or 1):
                yield from self.answers(waiting, batches, **options)
                waiting = []
        if waiting:
            yield from self.answers(waiting, batches, **options)

    def _checked(self, options: dict[str, Any]) -> dict[str, Any]:
        """PosexportError for an option that `answers` does not have."""
        parameters = list(inspect.signature(self.answers).parameters.values())[2:]
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return options
        names = [parameter.name for parameter in parameters]
        for name in options:
            if name not in names:
                hint = did_you_mean(name, names, f"it has {', '.join(names)}" if names else "it has none")
                raise PosexportError(f"the pipeline {self.task} has no option {name}; {hint}")
        return options


def as_inputs(inputs: Any) -> Any:
    """A tuple, an array of texts or pictures [B, H, W, C] as a list; one input, a list and an iterator as they are."""
    if isinstance(inputs, Iterator):
        return inputs
    listed = list(inputs) if getattr(inputs, "ndim", 0) == _PICTURES else several(inputs)
    return inputs if listed is None else listed


def is_torch_dataset(inputs: object) -> bool:
    """Whether it is a ``torch.utils.data.Dataset``, which transformers' pipelines read lazily. Imports no torch."""
    return any(base.__name__ == "Dataset" and base.__module__.startswith("torch.utils") for base in type(inputs).mro())
