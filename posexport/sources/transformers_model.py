"""A model of transformers that is in memory: written out as a checkpoint, and read as every checkpoint is."""

import contextlib
import tempfile
from collections.abc import Iterator
from typing import Any

from torch import nn

from posexport.errors import PosexportError

_BASE = "PreTrainedModel"


def is_transformers_model(module: object) -> bool:
    """Whether ``module`` is a `PreTrainedModel` with a forward of transformers. Does not import transformers.

    A subclass with the user's forward computes something that no checkpoint describes.
    """
    classes = type(module).__mro__
    forward = next((cls for cls in classes if "forward" in vars(cls)), object)
    return _of_transformers(forward) and any(cls.__name__ == _BASE and _of_transformers(cls) for cls in classes)


def _of_transformers(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "transformers"


def name_of(model: Any) -> str:
    """The Hub id or folder that the model was loaded from; its class where it was made from a configuration."""
    return getattr(model.config, "name_or_path", "") or type(model).__name__


@contextlib.contextmanager
def as_checkpoint(
    source: str | nn.Module, tokenizer: Any = None, *, live: bool = False
) -> Iterator[tuple[str | nn.Module, str | None]]:
    """The folder of a checkpoint for a model of transformers, as long as the block lasts, and the model's name.

    Any other source is yielded as it is, with None.

    ``tokenizer``: the model's tokenizer of transformers; its files become part of the checkpoint.
    ``live``: example inputs come with it, so it is converted as any module in memory.

    Raises:
        PosexportError: transformers cannot save the model.
    """
    if live or isinstance(source, str) or not is_transformers_model(source):
        yield source, None
        return
    name = name_of(source)
    with saved(source, tokenizer) as folder, called(name, folder):
        yield folder, name


def saved(model: nn.Module, tokenizer: Any = None) -> "tempfile.TemporaryDirectory[str]":
    """The checkpoint of a model of transformers, as long as the answer lives or until its block ends."""
    folder = tempfile.TemporaryDirectory(prefix="posexport-")
    try:
        parts: list[Any] = [model, tokenizer]
        for saved in parts:
            if hasattr(saved, "save_pretrained"):
                saved.save_pretrained(folder.name)
    except Exception as err:
        raise PosexportError(
            f"{name_of(model)}: save_pretrained raised {type(err).__name__}: {err}; save the checkpoint yourself "
            "and convert its directory"
        ) from err
    return folder


@contextlib.contextmanager
def called(name: str, folder: str) -> Iterator[None]:
    """What fails in the block names the model, not the folder, which the user never saw."""
    try:
        yield
    except PosexportError as err:
        err.args = (str(err).replace(folder, name),)
        raise
