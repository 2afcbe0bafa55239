"""From a name and options to the source that is exported, and that a bundle is compared with: the one way to both."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from posexport.nn.caching import Rotate
from posexport.recipe import CacheName
from posexport.sources import hub
from posexport.sources.cached import cached
from posexport.sources.extend import extend
from posexport.sources.resolve import LoadOptions, load_source
from posexport.sources.settings import parse
from posexport.sources.source import Source
from posexport.spec import Beyond

#: options of loading that a recipe has no use for: whether a file may be read, tensors of the user's, a bundle's inputs
_NOT_RECORDED = ("allow_pickle", "example_inputs", "axes", "bundle_inputs")


def prepare(
    argument: str | nn.Module,
    options: LoadOptions,
    *,
    beyond: Beyond = "error",
    max_length: int | None = None,
    cache: CacheName = "dynamic",
    rotation: Rotate = "at-write",
) -> Source:
    """The source called ``argument`` with its limit, its KV cache and its rotation of keys as asked.

    Raises:
        PosexportError: what is wrong with the source, or which option does not fit it, in one sentence.
    """
    return cached(extend(load_source(argument, options), beyond, max_length), cache, rotation)


def recorded(options: LoadOptions, source: Source) -> dict[str, Any]:
    """What a recipe says about loading: every option but permissions, the task as the source resolved it."""
    chosen = {f.name: getattr(options, f.name) for f in fields(LoadOptions) if f.name not in _NOT_RECORDED}
    return {**chosen, "task": source.task, "settings": dict(sorted(parse(options.settings).items()))}


def again(
    record: dict[str, Any], options: LoadOptions, argument: str | nn.Module, *, kind: str, name: str
) -> LoadOptions:
    """``options`` for loading ``argument``, completed by what a recipe recorded of a source of this kind and name.

    What the user says now goes before what is recorded. Task and settings are those of one built-in model, or the task
    of a checkpoint or a module.
    """
    known = {f.name: record[f.name] for f in fields(LoadOptions) if f.name in record}
    settings = tuple(f"{key}={value}" for key, value in known.pop("settings", {}).items())
    named = argument if isinstance(argument, str) else ""
    same = {
        "builtin": named == name,
        "huggingface": Path(named).is_dir() or hub.parse(named) is not None,
        "python": not named or named.rpartition(":")[0].endswith(".py"),
    }
    if not same[kind]:
        known.pop("task", None)
        settings = ()
    completed = {key: getattr(options, key) or value for key, value in known.items()}
    return replace(options, **completed, settings=options.settings or settings)
