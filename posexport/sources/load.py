"""One door for all kinds of source."""

from dataclasses import dataclass
from pathlib import Path

from posexport.errors import PosexportError
from posexport.sources.base import Source


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What a user may say about a source. ``settings`` are the ``--set`` pairs.

    ``as_transformers``: of a checkpoint, compute what transformers' code does where it differs from the paper.
    """

    task: str | None = None
    settings: tuple[str, ...] = ()
    allow_pickle: bool = False
    as_transformers: bool = False


def load(argument: str, options: LoadOptions) -> Source:
    """A built-in name, ``file.py:factory``, or a checkpoint directory.

    Raises:
        PosexportError: what is wrong with the source, in one sentence.
    """
    from posexport.sources import builtin, python_file

    if options.as_transformers and not Path(argument).is_dir():
        raise PosexportError(f"--as-transformers is for checkpoint directories; {argument} is none: leave it out")
    path_text, colon, factory = argument.rpartition(":")
    if colon and path_text.endswith(".py") and factory.isidentifier():
        if options.settings or options.task:
            raise PosexportError(
                f"--set and --task are for built-in models and checkpoints; {argument} decides for itself"
            )
        return python_file.load(argument)
    if argument.endswith(".py"):
        raise PosexportError(f"{argument} names no factory; write {argument}:FACTORY")
    path = Path(argument)
    if path.is_dir():
        if options.settings:
            raise PosexportError(f"--set is for built-in models; the sizes of {argument} are in its config.json")
        from posexport.sources.huggingface.load import load as load_checkpoint

        return load_checkpoint(
            path,
            task=options.task,
            allow_pickle=options.allow_pickle,
            as_transformers=options.as_transformers,
        )
    if path.exists():
        raise PosexportError(
            f"{argument} is a file; a checkpoint is a directory with config.json and model.safetensors"
        )
    if "/" in argument or argument.startswith("."):
        raise PosexportError(
            f"no such directory: {argument}; give one with config.json and model.safetensors, a built-in model "
            "(posexport list models) or file.py:factory"
        )
    return builtin.load(argument, task=options.task, settings_given=options.settings)
