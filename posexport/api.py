"""The functions of ``import posexport``. Importing this imports neither torch nor onnxruntime.

One file of 400 lines, most of them docstrings: whoever looks for the public functions finds all of them here.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, BinaryIO

from posexport.base.options import commands as options_of_verify
from posexport.base.options.check import as_path, check_choice, check_options
from posexport.base.options.commands import (
    AUDIT_GROUPS,
    OPTIMIZE_GROUPS,
    AuditOptions,
    OpenOptions,
    OptimizeOptions,
    Progress,
    Remark,
    VerifyOptions,
)
from posexport.base.options.option import PROOF, RUNTIME, StrPath, describe, taking
from posexport.base.system.extras import require
from posexport.base.system.one_at_a_time import ONE_AT_A_TIME
from posexport.conversion.options import GROUPS, ConvertOptions
from posexport.errors import PosexportError
from posexport.run.pipelines.open import pipeline as pipeline

if TYPE_CHECKING:
    from torch import nn

    from posexport.conversion.result import Conversion
    from posexport.inspect.audit.finding import Findings
    from posexport.inspect.optimize.record import Optimized
    from posexport.proof.report.report import Report
    from posexport.run.session import Session
    from posexport.serve.drop_in.finish import ExportedModel


class _Conversion(ConvertOptions, frozen=True):
    """The arguments of `convert`: its two positional ones, and all options as keywords."""

    source: "StrPath | nn.Module"
    output: StrPath


@taking(_Conversion)
def convert(arguments: _Conversion) -> "Conversion":
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

    options = ConvertOptions(**{name: getattr(arguments, name) for name in ConvertOptions.__struct_fields__})
    return run(
        _named("source", arguments.source),
        as_path("output", arguments.output),
        options,
        progress=arguments.progress,
        remark=arguments.remark or _ignore,
    )


describe(convert, _Conversion, ConvertOptions, GROUPS)


class _Verification(VerifyOptions, frozen=True):
    """The arguments of `verify`: its two positional ones, and all options as keywords."""

    bundle: StrPath
    against: "StrPath | nn.Module | None" = None


@taking(_Verification)
def verify(arguments: _Verification) -> "Report":
    """Check a bundle, or any ``.onnx``, against its source; without one, the sample that the bundle carries.

    Args:
        bundle: a bundle's directory, or an ``.onnx`` file (then ``against`` is needed).
        against: what it was converted from, as in `convert`. The whole grid is computed by PyTorch in float64.
        options: OPTIONS

    Returns:
        The report: ``passed``, ``verdict``, ``to_text()`` with the table, every point.

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
    require(
        "posexport.verify", "onnxruntime", *(() if arguments.against is None else ("torch", "onnxscript", "onnx_ir"))
    )
    from posexport.conversion.verification import verify as run

    options = VerifyOptions(**{name: getattr(arguments, name) for name in VerifyOptions.__struct_fields__})
    against = None if arguments.against is None else _named("against", arguments.against)
    return run(as_path("bundle", arguments.bundle), against, options)


describe(verify, _Verification, VerifyOptions, options_of_verify.GROUPS)


class _Audit(AuditOptions, frozen=True):
    """The arguments of `audit`: its positional one, and all options as keywords."""

    path: StrPath


@taking(_Audit)
def audit(arguments: _Audit) -> "Findings":
    """Find what an ONNX file of any tool gets wrong, by the file alone. Needs no PyTorch; runs nothing without ``run``.

    Args:
        path: an ``.onnx`` file, or a folder with some.
        options: OPTIONS

    Returns:
        The findings, the worst first, each with its code, nodes and remedy; ``at_least("error")`` filters them.

    Raises:
        PosexportError: no file, a damaged one, or one that refers to bytes that it may not.

    Examples:
        >>> import posexport
        >>> done = posexport.convert("encoder-rope", "rope-audited", settings={"layers": 1}, verify=False)
        >>> len(posexport.audit("rope-audited/model.onnx"))
        0
    """
    require("posexport.audit", "onnx_ir", "onnx_shape_inference")
    from posexport.inspect.audit.audit import audit as run

    check_options(arguments)
    options = AuditOptions(**{name: getattr(arguments, name) for name in AuditOptions.__struct_fields__})
    return run(as_path("path", arguments.path), options)


describe(audit, _Audit, AuditOptions, AUDIT_GROUPS)


class _Optimization(OptimizeOptions, frozen=True):
    """The arguments of `optimize`: its positional ones, and all options as keywords."""

    path: StrPath
    output: StrPath


@taking(_Optimization)
def optimize(arguments: _Optimization) -> "Optimized":
    """Make an ONNX file of any tool faster, without its source and without PyTorch; its interface stays as it is.

    Args:
        path: an ``.onnx`` file.
        output: the file to write.
        options: OPTIONS

    Returns:
        What each graph pass and lowering did, why places are as they were, and what calls of both files showed;
        ``refused`` says why nothing was written.

    Raises:
        PosexportError: no file, a damaged one, one that cannot be called, or an output that exists.

    Examples:
        >>> import posexport
        >>> done = posexport.convert("encoder-rope", "rope-portable", settings={"layers": 1}, verify=False)
        >>> posexport.optimize("rope-portable/model.onnx", "rope-for-the-cpu.onnx").refused
        ''
    """
    require("posexport.optimize", "onnxruntime", "onnxscript", "onnx_ir", "onnx_shape_inference")
    from posexport.inspect.optimize.optimize import optimize as run

    check_options(arguments)
    options = OptimizeOptions(**{name: getattr(arguments, name) for name in OptimizeOptions.__struct_fields__})
    return run(as_path("path", arguments.path), as_path("output", arguments.output), options)


describe(optimize, _Optimization, OptimizeOptions, OPTIMIZE_GROUPS)


class _Loading(OpenOptions, frozen=True):
    """The arguments of `load`: its positional one, and all options as keywords."""

    bundle: StrPath


@taking(_Loading)
def load(arguments: _Loading) -> "Session":
    """Open a bundle, ready to run arrays or texts, and to generate. Needs no PyTorch.

    Args:
        bundle: its directory.
        options: OPTIONS

    Raises:
        PosexportError: no bundle, a file is missing or altered, the provider does not load or has no such option.

    Examples:
        >>> import posexport
        >>> done = posexport.convert("encoder-rope", "rope", settings={"layers": 1, "hidden": 60}, verify=False)
        >>> session = posexport.load("rope")
        >>> session.run({"input_ids": [[5, 2, 7], [9, 1, 3]]})["last_hidden_state"].shape
        (2, 3, 60)
    """
    require("posexport.load", "onnxruntime")
    from posexport.run.load import load as open_bundle

    check_options(arguments)
    options = {name: getattr(arguments, name) for name in OpenOptions.__struct_fields__}
    return open_bundle(as_path("bundle", arguments.bundle), **options)


describe(load, _Loading, OpenOptions, (RUNTIME, PROOF))


def torch_onnx_export(
    model: "nn.Module",
    args: Any = (),
    f: "StrPath | BinaryIO | None" = None,
    *positional: Any,
    kwargs: Mapping[str, Any] | None = None,
    export_params: bool = True,
    verbose: bool | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]] | None = None,
    keep_initializers_as_inputs: bool | None = None,
    dynamo: bool | None = None,
    external_data: bool | None = None,
    dynamic_shapes: Any = None,
    custom_translation_table: Mapping[Any, Any] | None = None,
    report: bool = False,
    optimize: bool = True,
    verify: bool = False,
    profile: bool = False,
    dump_exported_program: bool = False,
    artifacts_dir: StrPath = ".",
    fallback: bool = False,
    do_constant_folding: bool = True,
    training: Any = None,
    operator_export_type: Any = None,
    custom_opsets: Mapping[str, int] | None = None,
    export_modules_as_functions: Any = False,
    autograd_inlining: bool = True,
    parity: bool = True,
    target: str = "portable",
    lowering: str = "auto",
    inline: bool = False,
    provider: str | None = None,
    lengths: Sequence[int] | None = None,
    threads: int = 0,
    progress: Progress | None = None,
    remark: Remark | None = None,
) -> "ExportedModel":
    """Write one ``.onnx`` with the arguments of ``torch.onnx.export``, and prove it before it appears.

    Args:
        model: the module; it is not changed. It is exported in eval mode.
        args: example inputs: a tensor, or a tuple, at whose end a dict holds keyword arguments. Tuples, lists and dicts
            of tensors are inputs each; numbers, strings and None are fixed in the file.
        f: a path, a binary buffer, or None. A file that is there stays as it is where this raises.
        positional: what torch 2.4 and before took in this place without names, from ``export_params`` on.
        kwargs, input_names, output_names, dynamic_axes, dynamic_shapes: as torch takes them. Without the last two every
            axis has the example's size.
        opset_version: default 18, which is the lowest.
        external_data: weights in a separate file; default: above 2 GB.
        parity: prove the file at the lengths and batch sizes that its axes declare.
        target, lowering, inline, provider, lengths, threads, progress, remark: as in `convert`.

    The other arguments say how torch's exporters work: they are ignored with one warning, or refused where they would
    change the file.

    Returns:
        The model with ``save(path)``, ``model_proto``, ``report`` and ``verdict``.

    Raises:
        PosexportError: the module cannot be exported, an axis that is declared to vary cannot, parity was missed.

    Examples:
        >>> import posexport, torch
        >>> layer = torch.nn.TransformerEncoderLayer(12, 2, 20, batch_first=True)
        >>> axes = {"x": {0: "batch", 1: "tokens"}, "y": {0: "batch", 1: "tokens"}}
        >>> posexport.torch_onnx_export(
        ...     layer, torch.zeros(1, 5, 12), "layer.onnx", input_names=["x"], output_names=["y"], dynamic_axes=axes
        ... ).verdict
        'proven up to 2048 tokens'
    """
    arguments = dict(locals())
    require("posexport.torch_onnx_export", "torch", "onnxscript", "onnx_ir", "onnxruntime")
    from posexport.serve.drop_in.export import export
    from posexport.serve.drop_in.request import by_name, check_arguments, request

    arguments = by_name(arguments, arguments.pop("positional"))
    check_arguments(arguments)
    with ONE_AT_A_TIME:
        return export(request(arguments))


def report(
    bundle: StrPath,
    output: StrPath,
    *,
    bench: "StrPath | Sequence[StrPath]" = (),
    texts: Sequence[str] = (),
    run: bool = True,
    force: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write one HTML file about a bundle: its proof, positions, kernels, speed, answers and commands.

    The file loads nothing else. Needs no PyTorch.

    Args:
        bundle: its directory.
        output: the file to write.
        bench: documents of ``posexport bench -o``, for time and memory by length.
        texts: what the bundle answers on the page, in place of examples for its task.
        run: call the model here: check its stored sample, time a call, answer texts.
        force: replace an existing file.
        progress: called with the finished steps, their total, and the current step.

    Raises:
        PosexportError: no bundle, an altered file, a benchmark that cannot be read, an output that cannot be written.

    Examples:
        >>> import posexport
        >>> done = posexport.convert("encoder-kerple", "kerple", settings={"layers": 1}, lengths=[5])
        >>> posexport.report("kerple", "kerple.html", run=False)
    """
    from posexport.catalogue.stored import catalogue
    from posexport.inspect.report.report import report as write

    files = [bench] if isinstance(bench, str | PathLike) else bench
    write(
        as_path("bundle", bundle),
        as_path("output", output),
        bench=[as_path("bench", file) for file in files],
        texts=texts,
        run=run,
        force=force,
        about={row["name"]: row["what"] for row in catalogue("encodings")},
        progress=progress,
    )


def list_available(kind: str = "encodings") -> list[dict[str, Any]]:
    """What there is of a kind, as ``posexport list KIND --json`` prints it: a name, what it is, and more by kind.

    Args:
        kind: ``encodings``, ``models`` (built in), ``families`` (of Hugging Face checkpoints, by model_type),
            ``tasks``, ``lowerings``, ``ops`` or ``providers``.

    Raises:
        PosexportError: the kind is unknown.

    Examples:
        >>> import posexport
        >>> [row["source"] for row in posexport.list_available("encodings") if row["name"] == "alibi"]
        ['Press et al. 2022, arXiv:2108.12409, section 3']
        >>> [row["tasks"] for row in posexport.list_available("families") if row["name"] == "llama"]
        [['features', 'sequence-classification', 'text-generation']]
    """
    from posexport.catalogue.stored import catalogue, kinds

    check_choice("kind", kind, kinds())
    return catalogue(kind)


def _named(name: str, source: object) -> "str | nn.Module":
    """The argument ``name``, a source: a path or name as a string, or a module."""
    if isinstance(source, str | PathLike):
        return str(source)
    from torch import nn

    if isinstance(source, nn.Module):
        return source
    raise PosexportError(
        f"{name} must be a checkpoint, a built-in model's name, file.py:factory or a torch.nn.Module, got "
        f"{type(source).__name__}"
    )


def _ignore(_sentence: str) -> None:
    """The default of ``remark``: the remarks are also in the result."""
