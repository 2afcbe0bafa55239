"""The functions of ``import posexport``. Importing this imports neither torch nor onnxruntime."""

import functools
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from posexport.conversion.options import GROUPS, ConvertOptions, Progress, Remark, pairs
from posexport.extras import require
from posexport.option import StrPath, describe

if TYPE_CHECKING:
    from torch import nn

    from posexport.conversion.result import Conversion
    from posexport.parity.report.report import Report
    from posexport.runtime.session import Session
    from posexport.targets.precisions import PrecisionName

_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R")


class _Conversion(ConvertOptions, frozen=True):
    """The arguments of `convert`."""

    source: "StrPath | nn.Module"
    output: StrPath


def _taking(record: Callable[_P, _T]) -> Callable[[Callable[[_T], _R]], Callable[_P, _R]]:
    """A function of the fields of ``record``, from one of the record; type checkers see every field as an argument."""

    def decorator(function: Callable[[_T], _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            return function(record(*args, **kwargs))

        return call

    return decorator


@_taking(_Conversion)
def convert(asked: _Conversion) -> "Conversion":
    """Convert a model to a bundle that ONNX Runtime runs at any batch size and length, and prove it.

    Args:
        source: a checkpoint directory, a built-in model, ``file.py:factory``, a model of transformers, or a module.
        output: the directory to write.
        options: OPTIONS

    Returns:
        The conversion; ``good`` is False where parity was missed, and then nothing was written.

    Raises:
        PosexportError: what cannot be converted and why, in one sentence.

    Examples:
        >>> import posexport
        >>> done = posexport.convert("encoder-t5", "t5-encoder", settings={"layers": 1}, lengths=[5])
        >>> done.good, done.verdict
        (True, 'checked at 5 tokens, not proven')
    """
    require("posexport.convert", "torch", "onnxscript", "onnx_ir", "onnxruntime")
    from posexport.conversion.convert import convert as run

    options = ConvertOptions(**{name: getattr(asked, name) for name in ConvertOptions.__struct_fields__})
    return run(
        _named(asked.source), Path(asked.output), options, progress=asked.progress, remark=asked.remark or _ignore
    )


describe(convert, _Conversion, ConvertOptions, GROUPS)


def verify(
    bundle: StrPath,
    against: "StrPath | nn.Module | None" = None,
    *,
    tolerance: float | None = None,
    precision: "PrecisionName | None" = None,
    emulate: "PrecisionName | None" = None,
    example_inputs: Any = None,
    axes: Mapping[str, Sequence[str | int]] | None = None,
    task: str | None = None,
    settings: Mapping[str, Any] | None = None,
    provider: str = "cpu",
    lengths: Sequence[int] | None = None,
    threads: int = 0,
    allow_pickle: bool = False,
    as_transformers: bool = False,
    progress: Progress | None = None,
    remark: Remark | None = None,
) -> "Report":
    """Check a bundle, or any ``.onnx``, against its source; without one, the sample that the bundle carries.

    Args:
        bundle: a bundle's directory, or an ``.onnx`` file (then ``against`` is needed).
        against: what it was converted from, as in `convert`. The whole grid is computed by PyTorch in float64.
        tolerance: the largest error ``max |y - y64| / max |y64|`` that passes, in place of the criterion. The verdict
            is then "within 0.001", never "proven".
        precision: of a bundle with several, which one; default: its first.
        emulate: ``fp16`` or ``bf16``: check a copy that computes in float32 and rounds every operator's output, as a
            GPU would; of a float32 model everything is rounded, positions too: what half precision everywhere costs.
        example_inputs, axes, task, settings, allow_pickle, as_transformers: about ``against``, as in `convert`.
        provider: ``cpu`` or ``cuda``; one that does not load is an error.
        lengths: check these lengths in tokens, not the grid's.
        threads: to compute with; 0 lets the runtime choose.
        progress, remark: as in `convert`.

    Returns:
        The report: ``passed``, ``verdict`` in words, ``to_text()`` with the table, every point.

    Raises:
        PosexportError: there is nothing to check with, the bundle is damaged, the provider does not load.

    Examples:
        >>> import posexport
        >>> done = posexport.convert("encoder-alibi", "alibi", settings={"layers": 1}, lengths=[5])
        >>> posexport.verify("alibi").verdict
        'checked on the stored sample'
        >>> posexport.verify("alibi", "encoder-alibi", tolerance=1e-3, lengths=[7]).verdict
        'within 0.001'
    """
    require("posexport.verify", "onnxruntime", *(() if against is None else ("torch", "onnxscript", "onnx_ir")))
    from posexport.sources.resolve import LoadOptions
    from posexport.verification import verify as run

    loading = LoadOptions(
        task=task,
        settings=pairs(settings),
        allow_pickle=allow_pickle,
        as_transformers=as_transformers,
        example_inputs=example_inputs,
        axes=axes,
    )
    return run(
        Path(bundle),
        against=None if against is None else _named(against),
        options=loading,
        tolerance=tolerance,
        precision=precision,
        emulate=emulate,
        provider=provider,
        lengths=lengths,
        threads=threads,
        progress=progress,
        remark=remark or _ignore,
    )


def load(
    bundle: StrPath,
    *,
    precision: "PrecisionName | None" = None,
    provider: str = "cpu",
    threads: int = 0,
    check: bool = True,
) -> "Session":
    """Open a bundle, ready to run arrays or texts, and to generate. Needs no PyTorch.

    Args:
        bundle: its directory.
        precision: of a bundle with several, which one; default: its first.
        provider: ``cpu`` or ``cuda``; one that does not load is an error.
        threads: of one operator; 0 lets ONNX Runtime choose.
        check: compare every file with its sha256 first.

    Raises:
        PosexportError: no bundle, a file is missing or altered, the provider does not load.

    Examples:
        >>> import posexport
        >>> done = posexport.convert("encoder-rope", "rope", settings={"layers": 1, "hidden": 60}, verify=False)
        >>> session = posexport.load("rope")
        >>> session.run({"input_ids": [[5, 2, 7], [9, 1, 3]]})["last_hidden_state"].shape
        (2, 3, 60)
    """
    require("posexport.load", "onnxruntime")
    from posexport.runtime.session import load as open_bundle

    return open_bundle(bundle, precision=precision, provider=provider, threads=threads, check=check)


def list_encodings() -> list[dict[str, Any]]:
    """Every position encoding: its name, what it does, its source, its parameters and limits, its built-in models.

    Examples:
        >>> import posexport
        >>> [row["source"] for row in posexport.list_encodings() if row["name"] == "alibi"]
        ['Press et al. 2022, arXiv:2108.12409, section 3']
    """
    from posexport.catalogue import catalogue

    return catalogue("encodings")


def list_families() -> list[dict[str, Any]]:
    """Every family of Hugging Face checkpoints that can be converted, ``model_type`` as in config.json, with its tasks.

    Examples:
        >>> import posexport
        >>> [row["tasks"] for row in posexport.list_families() if row["name"] == "llama"]
        [['features', 'text-generation']]
    """
    from posexport.catalogue import catalogue

    return catalogue("families")


def _named(source: "StrPath | nn.Module") -> "str | nn.Module":
    """A path or name as text; a module as it is."""
    return str(source) if isinstance(source, str | PathLike) else source


def _ignore(_sentence: str) -> None:
    """Nobody asked for remarks; they are part of the result."""
