"""One door for all kinds of source."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from posexport.errors import PosexportError

if TYPE_CHECKING:
    from torch import nn

    from posexport.options.recipe import Through
    from posexport.sources.hub import HubId
    from posexport.sources.source import Source
    from posexport.spec import InputSpec


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What a user may say about a source. ``settings`` are the ``--set`` pairs.

    ``as_transformers``: of a checkpoint, compute what transformers' code does where it differs from the paper.
    ``through``: whose model of a checkpoint, where posexport defines its type too.
    ``example_inputs`` and ``axes`` tell the inputs of a module in memory (`posexport.sources.live_module`);
    ``bundle_inputs``, those of a bundle to compare with, tell them where the user does not.
    """

    task: str | None = None
    settings: tuple[str, ...] = ()
    allow_pickle: bool = False
    as_transformers: bool = False
    through: "Through | None" = None
    example_inputs: Any = None
    axes: Any = None
    bundle_inputs: Sequence["InputSpec"] = ()


def load_source(argument: "str | nn.Module", options: LoadOptions) -> "Source":
    """A built-in name, ``file.py:factory``, a checkpoint directory, a Hub id ``org/name``, or a module in memory.

    Raises:
        PosexportError: what is wrong with the source, in one sentence.
    """
    from posexport.sources import builtin, hub

    if not isinstance(argument, str):
        return _module(argument, options)
    if options.example_inputs is not None or options.axes is not None:
        raise PosexportError(f"example_inputs and axes are for modules in memory; {argument} names its own inputs")
    hub_id, path = hub.parse(argument), Path(argument)
    if hub_id is None and not path.is_dir():
        for flag in ("as_transformers", "through"):
            if getattr(options, flag):
                raise PosexportError(
                    f"--{flag.replace('_', '-')} is for checkpoint directories; {argument} is none: leave it out"
                )
    if argument.endswith(".py") or _factory(argument):
        return _python_file(argument, options)
    if path.is_dir() or hub_id is not None:
        return _checkpoint(hub_id or path, argument, options)
    if path.exists():
        raise PosexportError(
            f"{argument} is a file; a checkpoint is a directory with config.json and model.safetensors"
        )
    if "/" in argument or argument.startswith("."):
        raise PosexportError(
            f"no such directory: {argument}; give one with config.json and model.safetensors, a built-in model "
            "(posexport list models) or file.py:factory"
        )
    return builtin.builtin_source(argument, task=options.task, settings_given=options.settings)


def _module(module: "nn.Module", options: LoadOptions) -> "Source":
    from posexport.sources import live_module
    from posexport.sources.with_cache import with_cache

    if options.settings or options.as_transformers or options.through:
        raise PosexportError(
            "settings are for built-in models, as_transformers and through are for checkpoints, not modules"
        )
    source = live_module.module_source(module, options.example_inputs, options.axes, options.bundle_inputs)
    return with_cache(source, options.task)


def _factory(argument: str) -> bool:
    """Whether ``argument`` is ``file.py:factory``."""
    path, colon, factory = argument.rpartition(":")
    return bool(colon) and path.endswith(".py") and factory.isidentifier()


def _python_file(argument: str, options: LoadOptions) -> "Source":
    from posexport.sources import python_file

    if not _factory(argument):
        raise PosexportError(f"{argument} names no factory; write {argument}:FACTORY")
    if options.settings:
        raise PosexportError(f"--set is for built-in models; {argument} decides for itself")
    return python_file.python_source(argument, options.bundle_inputs, options.task)


def _checkpoint(place: "Path | HubId", argument: str, options: LoadOptions) -> "Source":
    """A checkpoint in a directory, or on the Hub."""
    from posexport.sources import hub
    from posexport.sources.huggingface.checkpoint import checkpoint_source

    if options.settings:
        raise PosexportError(f"--set is for built-in models; the sizes of {argument} are in its config.json")
    chosen: dict[str, Any] = {
        "task": options.task,
        "allow_pickle": options.allow_pickle,
        "as_transformers": options.as_transformers,
        "through": options.through,
    }
    if isinstance(place, Path):
        return checkpoint_source(place, **chosen)
    snapshot = hub.snapshot(place, allow_pickle=options.allow_pickle)
    source = checkpoint_source(snapshot.directory, **chosen)
    remark = f"{place.name} is read from the Hugging Face cache at commit {snapshot.commit[:12]}"
    return msgspec.structs.replace(
        source, name=str(place), label=place.name, revision=snapshot.commit, remarks=[remark, *source.remarks]
    )
