"""One door for all kinds of source."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posexport.errors import PosexportError

if TYPE_CHECKING:
    from torch import nn

    from posexport.sources.hub import HubId
    from posexport.sources.source import Source


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What a user may say about a source. ``settings`` are the ``--set`` pairs.

    ``as_transformers``: of a checkpoint, compute what transformers' code does where it differs from the paper.
    ``example_inputs`` and ``axes`` tell the inputs of a module in memory (`posexport.sources.live_module`).
    """

    task: str | None = None
    settings: tuple[str, ...] = ()
    allow_pickle: bool = False
    as_transformers: bool = False
    example_inputs: Any = None
    axes: Any = None


def load(argument: "str | nn.Module", options: LoadOptions) -> "Source":
    """A built-in name, ``file.py:factory``, a checkpoint directory, a Hub id ``org/name``, or a module in memory.

    Raises:
        PosexportError: what is wrong with the source, in one sentence.
    """
    from posexport.sources import builtin, hub, live_module, python_file
    from posexport.sources.with_cache import with_cache

    if not isinstance(argument, str):
        if options.settings or options.as_transformers:
            raise PosexportError("settings are for built-in models, as_transformers is for checkpoints, not modules")
        return with_cache(live_module.load(argument, options.example_inputs, options.axes), options.task)
    if options.example_inputs is not None or options.axes is not None:
        raise PosexportError(f"example_inputs and axes are for modules in memory; {argument} names its own inputs")
    hub_id = hub.parse(argument)
    if options.as_transformers and hub_id is None and not Path(argument).is_dir():
        raise PosexportError(f"--as-transformers is for checkpoint directories; {argument} is none: leave it out")
    path_text, colon, factory = argument.rpartition(":")
    if colon and path_text.endswith(".py") and factory.isidentifier():
        if options.settings:
            raise PosexportError(f"--set is for built-in models; {argument} decides for itself")
        return with_cache(python_file.load(argument), options.task)
    if argument.endswith(".py"):
        raise PosexportError(f"{argument} names no factory; write {argument}:FACTORY")
    path = Path(argument)
    if path.is_dir():
        return _checkpoint(path, argument, options)
    if path.exists():
        raise PosexportError(
            f"{argument} is a file; a checkpoint is a directory with config.json and model.safetensors"
        )
    if hub_id is not None:
        if options.settings:
            raise PosexportError(f"--set is for built-in models; the sizes of {argument} are in its config.json")
        return _from_hub(hub_id, options)
    if "/" in argument or argument.startswith("."):
        raise PosexportError(
            f"no such directory: {argument}; give one with config.json and model.safetensors, a built-in model "
            "(posexport list models) or file.py:factory"
        )
    return builtin.load(argument, task=options.task, settings_given=options.settings)


def _checkpoint(path: Path, argument: str, options: LoadOptions) -> "Source":
    if options.settings:
        raise PosexportError(f"--set is for built-in models; the sizes of {argument} are in its config.json")
    from posexport.sources.huggingface.checkpoint import load as load_checkpoint

    return load_checkpoint(
        path,
        task=options.task,
        allow_pickle=options.allow_pickle,
        as_transformers=options.as_transformers,
    )


def _from_hub(hub_id: "HubId", options: LoadOptions) -> "Source":
    from posexport.sources import hub

    snapshot = hub.snapshot(hub_id, allow_pickle=options.allow_pickle)
    source = _checkpoint(snapshot.directory, str(hub_id), options)
    remark = f"{hub_id.name} is read from the Hugging Face cache at commit {snapshot.commit[:12]}"
    return replace(
        source, name=str(hub_id), label=hub_id.name, revision=snapshot.commit, remarks=[remark, *source.remarks]
    )
