"""`assert_parity`: the proof as an assertion."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from posexport.options.recipe import DefinitionName
    from posexport.parity.report.report import Report
    from posexport.targets.precisions import PrecisionName


def assert_parity(
    bundle: str | PathLike[str],
    against: "str | PathLike[str] | nn.Module | None" = None,
    *,
    lengths: Sequence[int] | None = None,
    providers: Sequence[str] = ("cpu",),
    tolerance: float | None = None,
    precision: "PrecisionName | None" = None,
    emulate: "PrecisionName | None" = None,
    example_inputs: Any = None,
    axes: Mapping[str, Sequence[str | int]] | None = None,
    task: str | None = None,
    settings: Mapping[str, Any] | None = None,
    threads: int = 0,
    allow_pickle: bool = False,
    definition: "DefinitionName | None" = None,
) -> "dict[str, Report]":
    """Assert that a bundle computes what its source computes, on every one of ``providers``.

    Args:
        bundle: a bundle's directory, or an ``.onnx`` file of any tool (then ``against`` is needed).
        against: the source, as in `posexport.verify`: a checkpoint, a built-in model, ``file.py:factory``, a model of
            transformers or a module. With None the sample that the bundle carries is checked, which needs no PyTorch.
        lengths: sequence lengths in tokens, in place of the whole grid; with ``against`` only.
        providers: of ONNX Runtime: ``cpu``, ``cuda``.
        tolerance: the largest relative error that passes, in place of the criterion.
        precision: of a bundle with several, which one; default: its first.
        emulate: ``fp16`` or ``bf16``: check a copy that computes in float32 and rounds every operator's output.
        example_inputs, axes, task, settings, threads, allow_pickle, definition: as in `posexport.verify`.

    Returns:
        The report of every provider.

    Raises:
        AssertionError: parity is missed; the message has the first failure and the table of the proof.
        PosexportError: there is nothing to check: a damaged bundle, a provider that does not load, a missing library.

    Examples:
        >>> import posexport
        >>> from posexport.testing import assert_parity
        >>> done = posexport.convert("encoder-rope", "rope", settings={"layers": 1, "hidden": 60}, verify=False)
        >>> assert_parity("rope", "encoder-rope", lengths=[1, 17])["cpu"].passed
        True
    """
    __tracebackhide__ = True  # pytest shows the caller's line
    import posexport

    if isinstance(providers, str) or not providers:
        raise posexport.PosexportError(f"providers must be a list such as ['cpu', 'cuda'], got {providers!r}")
    reports: dict[str, Report] = {}
    for provider in providers:
        report = posexport.verify(
            bundle,
            against,
            tolerance=tolerance,
            precision=precision,
            emulate=emulate,
            example_inputs=example_inputs,
            axes=axes,
            task=task,
            settings=settings,
            provider=provider,
            lengths=lengths,
            threads=threads,
            allow_pickle=allow_pickle,
            definition=definition,
        )
        if not report.passed:
            raise AssertionError(f"{bundle} misses parity on {provider}: {report.describe()}\n\n{report.to_text()}")
        reports[provider] = report
    return reports
