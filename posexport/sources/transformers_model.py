"""A model of transformers that is in memory: written out as a checkpoint, and read as every checkpoint is."""

import contextlib
import tempfile
from collections.abc import Iterator
from typing import Any

from torch import nn

from posexport.errors import PosexportError

_BASE = "PreTrainedModel"


def is_transformers_model(module: object) -> bool:
    """Whether ``module`` is an instance of transformers' ``PreTrainedModel``, found without importing transformers."""
    return any(
        base.__name__ == _BASE and base.__module__.partition(".")[0] == "transformers" for base in type(module).__mro__
    )


def name_of(model: Any) -> str:
    """The Hub id or folder that the model was loaded from; its class where it was made from a configuration."""
    return getattr(model.config, "name_or_path", "") or type(model).__name__


@contextlib.contextmanager
def as_checkpoint(source: str | nn.Module, tokenizer: Any = None) -> Iterator[str | nn.Module]:
    """The folder of a checkpoint for a model of transformers, as long as the block lasts; any other source as it is.

    ``tokenizer``: one of transformers' that belongs to the model, whose files are then part of the checkpoint. What
    fails in the block names the model, not the folder, which the user never saw.

    Raises:
        PosexportError: transformers cannot save the model.
    """
    if isinstance(source, str) or not is_transformers_model(source):
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="posexport-") as folder:
        try:
            parts: list[Any] = [source, tokenizer]
            for part in parts:
                if hasattr(part, "save_pretrained"):
                    part.save_pretrained(folder)
        except Exception as err:
            raise PosexportError(
                f"{name_of(source)}: save_pretrained raised {type(err).__name__}: {err}; save the checkpoint yourself "
                "and convert its directory"
            ) from err
        try:
            yield folder
        except PosexportError as err:
            err.args = (str(err).replace(folder, name_of(source)),)
            raise
