"""`assert_parity`: the proof as an assertion."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posexport.api import verify
from posexport.base.options.commands import GROUPS, ParityOptions
from posexport.base.options.option import StrPath, describe, taking
from posexport.errors import PosexportError

if TYPE_CHECKING:
    from torch import nn

    from posexport.proof.report.report import Report


class _Assertion(ParityOptions, frozen=True):
    """The arguments of `assert_parity`."""

    bundle: StrPath
    against: "StrPath | nn.Module | None" = None
    providers: Sequence[str] = ("cpu",)


@taking(_Assertion)
def assert_parity(asked: _Assertion) -> "dict[str, Report]":
    """Assert that a bundle computes what its source computes, on every one of ``providers``.

    Args:
        bundle: a bundle's directory, or an ``.onnx`` file of any tool (then ``against`` is needed).
        against: the source, as in `posexport.verify`: a checkpoint, a built-in model, ``file.py:factory``, a model of
            transformers or a module. With None the sample that the bundle carries is checked, which needs no PyTorch.
        providers: of ONNX Runtime: ``cpu``, ``cuda``.
        options: OPTIONS

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
    if isinstance(asked.providers, str) or not asked.providers:
        raise PosexportError(f"providers must be a list such as ['cpu', 'cuda'], got {asked.providers!r}")
    options = {name: getattr(asked, name) for name in ParityOptions.__struct_fields__}
    reports: dict[str, Report] = {}
    for provider in asked.providers:
        report = verify(asked.bundle, asked.against, provider=provider, **options)
        if not report.passed:
            raise AssertionError(
                f"{asked.bundle} misses parity on {provider}: {report.describe()}\n\n{report.to_text()}"
            )
        reports[provider] = report
    return reports


describe(assert_parity, _Assertion, ParityOptions, GROUPS)
