"""The functions of ``import posexport``. Importing this imports neither torch nor onnxruntime."""

import functools
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ParamSpec, TypeVar

from posexport.conversion.options import GROUPS, ConvertOptions, Progress, Remark, pairs
from posexport.options.option import StrPath, describe
from posexport.pipelines.open import pipeline as pipeline
from posexport.system.extras import require
from posexport.system.one_at_a_time import ONE_AT_A_TIME

if TYPE_CHECKING:
    from torch import nn

    from posexport.conversion.result import Conversion
    from posexport.encodings.encoding import Encoding
    from posexport.options.recipe import DefinitionName
    from posexport.parity.report.report import Report
    from posexport.runtime.memory import Memory
    from posexport.runtime.session import Session
    from posexport.serve.drop_in.program import ExportedModel
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
    provider_options: Mapping[str, Any] | None = None,
    lengths: Sequence[int] | None = None,
    threads: int = 0,
    allow_pickle: bool = False,
    definition: "DefinitionName | None" = None,
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
        example_inputs, axes, task, settings, allow_pickle, definition: about ``against``, as in `convert`.
        provider: ``cpu``, ``cuda``, ``webgpu`` or ``openvino``; one that does not load is an error.
        provider_options: as in `load`, but ``graph``, which belongs to a loaded bundle.
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
    from posexport.sources.load import LoadOptions
    from posexport.verification import verify as run

    loading = LoadOptions(
        task=task,
        settings=pairs(settings),
        allow_pickle=allow_pickle,
        definition=definition,
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
        provider_options=provider_options,
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
    memory: "Memory" = "flat",
    check: bool = True,
    provider_options: Mapping[str, Any] | None = None,
) -> "Session":
    """Open a bundle, ready to run arrays or texts, and to generate. Needs no PyTorch.

    Args:
        bundle: its directory.
        precision: of a bundle with several, which one; default: its first.
        provider: ``cpu``, ``cuda``, ``webgpu`` or ``openvino``; one that does not load is an error.
        threads: of one operator; 0 lets ONNX Runtime choose.
        memory: ``flat``: a call of more than 4,096 tokens gives back the memory that it took, so that one large batch
            does not hold it for ever; ``fast``: everything is kept for the next call.
        check: compare every file with its sha256 first.
        provider_options: of ``cuda``: ``memory_limit`` ("4GB"), ``arena_growth`` ("double" or "exact"), ``tf32``
            (True or False), ``stream`` (a cudaStream_t as a number), ``graph`` (True: calls are CUDA graphs); ``cpu``
            has none.

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
    from posexport.runtime.load import load as open_bundle

    return open_bundle(
        bundle,
        precision=precision,
        provider=provider,
        threads=threads,
        memory=memory,
        check=check,
        provider_options=provider_options,
    )


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
    """Write one ``.onnx`` as ``torch.onnx.export`` is asked to, proven before it appears.

    Args:
        model: the module; it is not changed. It is exported in eval mode.
        args: example inputs: a tensor, or a tuple, at whose end a dict holds keyword arguments. Tuples, lists and dicts
            of tensors are inputs each; numbers, strings and None are fixed in the file.
        f: a path, a binary buffer, or None. A file that is there stays as it is where this raises.
        positional: what torch 2.4 and before took in this place without names, from ``export_params`` on.
        kwargs, input_names, output_names, dynamic_axes, dynamic_shapes: as torch takes them. Without the last two every
            axis has the example's size.
        opset_version: default 18, which is the lowest.
        external_data: weights in a file beside it; default: above 2 GB.
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
        'proven'
    """
    given = dict(locals())
    require("posexport.torch_onnx_export", "torch", "onnxscript", "onnx_ir", "onnxruntime")
    from posexport.serve.drop_in.arguments import by_name, check
    from posexport.serve.drop_in.export import export
    from posexport.serve.drop_in.request import request

    given = by_name(given, given.pop("positional"))
    check(given)
    with ONE_AT_A_TIME:
        return export(request(given))


def replace(
    module: "nn.Module",
    encodings: "Mapping[str, Encoding | str | tuple[str, Mapping[str, Any]]]",
    example_inputs: Any,
    *,
    must_agree: bool = True,
) -> "nn.Module":
    """A copy of a module with encodings of posexport in the place of submodules, compared with these in float64.

    Args:
        module: yours; it is not changed.
        encodings: from names of submodules, as in ``named_modules()``, or patterns (``layers.*.bias``), to encodings: a
            name of ``posexport list encodings``, a name and settings, ``("t5", {"max_distance": 64})``, or an
            ``Encoding``. Sizes are those of the submodule's calls. For a name, a table of the same shape is taken over.
        example_inputs: of the module, as in `convert`.
        must_agree: submodules and the whole module must give the same values in float64 at two lengths, beside what
            the rounding of their float32 constants explains. False: the model is changed on purpose.

    Raises:
        PosexportError: no such submodule, a submodule that is called otherwise, values that differ.

    Examples:
        >>> import posexport, torch
        >>> class Reader(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.token, self.at = torch.nn.Embedding(50, 12), torch.nn.Embedding(64, 12)
        ...     def forward(self, ids):
        ...         return self.token(ids) + self.at(torch.arange(ids.shape[1]))
        >>> ours = posexport.replace(Reader(), {"at": "learned"}, {"ids": torch.arange(14).reshape(2, 7)})
        >>> ours.at.encoding.limit
        64
    """
    require("posexport.replace", "torch")
    from posexport.modules.replaced.replace import replace as run

    with ONE_AT_A_TIME:
        return run(module, encodings, example_inputs, must_agree=must_agree)


def list_encodings() -> list[dict[str, Any]]:
    """Every position encoding: its name, what it does, its source, its parameters and limits, its built-in models.

    Examples:
        >>> import posexport
        >>> [row["source"] for row in posexport.list_encodings() if row["name"] == "alibi"]
        ['Press et al. 2022, arXiv:2108.12409, section 3']
    """
    from posexport.catalogue.stored import catalogue

    return catalogue("encodings")


def list_families() -> list[dict[str, Any]]:
    """Every family of Hugging Face checkpoints that can be converted, ``model_type`` as in config.json, with its tasks.

    Examples:
        >>> import posexport
        >>> [row["tasks"] for row in posexport.list_families() if row["name"] == "llama"]
        [['features', 'sequence-classification', 'text-generation']]
    """
    from posexport.catalogue.stored import catalogue

    return catalogue("families")


def _named(source: "StrPath | nn.Module") -> "str | nn.Module":
    """A path or name as text; a module as it is."""
    return str(source) if isinstance(source, str | PathLike) else source


def _ignore(_sentence: str) -> None:
    """Nobody asked for remarks; they are part of the result."""
