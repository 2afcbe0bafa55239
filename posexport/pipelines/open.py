"""`posexport.pipeline`: a bundle is opened for a task. Importing this imports neither NumPy nor onnxruntime."""

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from posexport.errors import PosexportError
from posexport.system.extras import require

if TYPE_CHECKING:
    from posexport.pipelines.pipeline import Pipeline
    from posexport.runtime.memory import Memory
    from posexport.runtime.session import Session
    from posexport.targets.precisions import PrecisionName


def pipeline(
    bundle: "str | PathLike[str] | Session",
    task: str | None = None,
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
    """What ``transformers.pipeline(task)`` gives: texts, pictures or sound in, its dictionaries out, without PyTorch.

    Args:
        bundle: its directory, or an open session, which the options of `load` no longer change.
        task: transformers' name of a task that the bundle has; default: the one that it was converted for.
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
    from posexport.pipelines.registry import check_task, open_pipeline
    from posexport.runtime.load import load
    from posexport.runtime.session import Session

    if task is not None:
        check_task(task)
    if isinstance(bundle, Session):
        loading = (precision, provider, threads, memory, check, provider_options)
        if loading != (None, "cpu", 0, "flat", True, None):
            raise PosexportError("the session is open already; give provider, threads and the like to posexport.load")
        return open_pipeline(bundle, task, batch_size=batch_size, **options)
    session = load(
        bundle,
        precision=precision,
        provider=provider,
        threads=threads,
        memory=memory,
        check=check,
        provider_options=provider_options,
    )
    return open_pipeline(session, task, batch_size=batch_size, **options)
