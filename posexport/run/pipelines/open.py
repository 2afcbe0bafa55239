"""`posexport.pipeline`: a bundle is opened for a task. Importing this imports neither NumPy nor onnxruntime."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from posexport.base.options.check import check_options
from posexport.base.options.commands import OpenOptions
from posexport.base.system.extras import require
from posexport.errors import PosexportError

if TYPE_CHECKING:
    from posexport.base.targets.precisions import PrecisionName
    from posexport.run.pipelines.pipeline import Pipeline
    from posexport.run.session import Session
    from posexport.run.wrapped_session import Memory


def pipeline(
    bundle: "str | PathLike[str] | Session",
    task: "str | PathLike[str] | Session | None" = None,
    *,
    precision: "PrecisionName | None" = None,
    provider: str = "cpu",
    threads: int = 0,
    memory: "Memory" = "flat",
    check: bool = True,
    provider_options: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    **options: Any,
) -> "Pipeline":
    """Opens a bundle as ``transformers.pipeline(task)``: texts, pictures or sound in, its dictionaries out, no PyTorch.

    Args:
        bundle: its directory, or an open session, which the options of `load` no longer change.
        task: transformers' name of a task that the bundle has; default: the one that it was converted for.
            transformers' order, ``pipeline(task, bundle)``, is accepted too.
        precision, provider, threads, memory, check, provider_options: as in `load`.
        batch_size: inputs of one call of the model at most; default: as many as 4,096 tokens allow.
        options: of the task, by transformers' names: defaults of every call.

    Returns:
        The pipeline: call it with one input, a list of inputs, or a generator of them.

    Raises:
        PosexportError: what `load` refuses, a task that the bundle does not have, an unknown option.

    Examples:
        >>> import posexport
        >>> classify = posexport.pipeline("sentiment")  # doctest: +SKIP
        >>> classify("A joy from start to end.")  # doctest: +SKIP
        [{'label': 'POSITIVE', 'score': 0.9998}]
    """
    require("posexport.pipeline", "onnxruntime")
    from posexport.run.load import load
    from posexport.run.pipelines.registry import check_task, open_pipeline
    from posexport.run.session import Session

    options_of_load = OpenOptions(
        precision=precision,
        provider=provider,
        threads=threads,
        memory=memory,
        check=check,
        provider_options=provider_options,
    )
    # arguments, in either order
    check_options(options_of_load)
    if not isinstance(bundle, str | PathLike | Session):
        raise PosexportError(f"bundle must be a path or an open session, got {type(bundle).__name__}")
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise PosexportError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
    bundle, task = _in_order(bundle, task)
    if task is not None:
        check_task(task)
    if isinstance(bundle, Session):
        if options_of_load != OpenOptions():
            raise PosexportError("the session is open already; give provider, threads and the like to posexport.load")
        return open_pipeline(bundle, task, batch_size=batch_size, **options)
    session = load(bundle, **msgspec.structs.asdict(options_of_load))
    return open_pipeline(session, task, batch_size=batch_size, **options)


def _in_order(
    bundle: "str | PathLike[str] | Session", task: "str | PathLike[str] | Session | None"
) -> "tuple[str | PathLike[str] | Session, str | None]":
    """The bundle and the task, exchanged where the caller used transformers' order, ``(task, model)``.

    A task's name in the second place is never a bundle, so a directory that is named like a task is read as before.
    """
    from posexport.run.pipelines.registry import is_task

    if task is None or (isinstance(task, str) and (is_task(task) or not is_task(bundle))):
        return bundle, task
    if not is_task(bundle):
        raise PosexportError(
            f"task must be the name of a task, got {type(task).__name__}; the bundle is the first argument"
        )
    if isinstance(task, str | PathLike) and not Path(task).is_dir():
        raise PosexportError(
            f"there is no bundle {str(task)!r} for the task {bundle}; give pipeline(bundle, task) with a directory "
            "that posexport convert has written"
        )
    return task, str(bundle)
