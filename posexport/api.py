"""The functions of ``import posexport``. Importing this imports neither torch nor onnxruntime."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from posexport.extras import require

if TYPE_CHECKING:
    from torch import nn

    from posexport.conversion.result import Conversion
    from posexport.parity.report.report import Report
    from posexport.recipe import LayoutName
    from posexport.runtime.session import Session
    from posexport.targets.precisions import PrecisionName
    from posexport.targets.target import TargetName

#: told what is done, of how many, and what is being done
Progress = Callable[[int, int, str], None]
#: told sentences that a user should know beside the result
Remark = Callable[[str], None]
StrPath = str | PathLike[str]


def convert(
    source: "StrPath | nn.Module",
    output: StrPath,
    *,
    example_inputs: Any = None,
    axes: Mapping[str, Sequence[str | int]] | None = None,
    task: str | None = None,
    settings: Mapping[str, Any] | None = None,
    target: "TargetName" = "portable",
    cache: Literal["dynamic", "static"] = "dynamic",
    rotation: Literal["at-write", "at-read"] = "at-write",
    opset: int | None = None,
    max_length: int | None = None,
    beyond: Literal["error", "clip", "interpolate"] = "error",
    layout: "LayoutName" = "bundle",
    lowering: str = "auto",
    inline: bool = False,
    precision: "PrecisionName | Sequence[PrecisionName]" = "fp32",
    io: Literal["float32", "half"] = "float32",
    keep_float: Sequence[str] = (),
    weight_only: bool = False,
    block_size: int = 32,
    quantizer: Literal["rtn", "hqq", "gptq"] = "rtn",
    calibrate: StrPath | None = None,
    texts: StrPath | None = None,
    tokenizer: Any = None,
    provider: str | None = None,
    lengths: Sequence[int] | None = None,
    threads: int = 0,
    verify: bool = True,
    keep: bool = False,
    force: bool = False,
    allow_pickle: bool = False,
    as_transformers: bool = False,
    progress: Progress | None = None,
    remark: Remark | None = None,
) -> "Conversion":
    """Convert a model to a bundle that ONNX Runtime runs at any batch size and length, and prove it.

    Args:
        source: a checkpoint directory, a built-in model, ``file.py:factory``, a model of transformers, or a module.
        output: the directory to write.
        example_inputs: of a module: tensors by the names of ``forward``'s arguments, or a tuple in their order.
        axes: of a module, by input: names of the axes that vary, sizes of the others; needed where the first two axes
            are not batch and sequence. ``{"x": ["batch_size", "sequence_length", 16]}``
        task: such as ``features``, ``text-generation``; default: what the checkpoint says.
        settings: sizes and parameters of a built-in model, ``{"layers": 4, "clip": 8}``.
        target: ``portable``, standard operators for any runtime; ``cpu`` or ``cuda``, also ONNX Runtime's own for it.
        cache: a decoder's KV cache: grown with every call, or of a fixed capacity in tokens.
        rotation: when a decoder rotates keys: before they are cached, or each time that they are read.
        opset: of the graph; default 18.
        max_length: the longest input in tokens.
        beyond: what happens beyond the trained length: refused, distances clipped, or the table interpolated.
        layout: which files are written, and their names: ``bundle``, ``genai`` and others (``convert --help``).
        lowering: how attention with positions is computed; ``auto`` chooses by the target.
        inline: write the graph without functions.
        precision: ``fp32``, ``fp16``, ``bf16``, ``int8``, ``int4``, or ``int4-fp16``: weights and
            activations; several for ``layout="transformers.js"``.
        io: of real-valued inputs and outputs: ``float32``, or ``half`` for the model's own precision.
        keep_float: glob patterns of weights that are not quantised.
        weight_only: int8 weights, activations in floating point.
        block_size: weights of a channel that share a scale, 32 or 128, where only weights are quantised.
        quantizer: how weights of 4 bits are rounded: ``rtn`` to nearest, ``hqq`` by half-quadratic quantization,
            ``gptq`` with the least error on the texts of ``calibrate``.
        calibrate: a file of texts, one a line, for static scales of int8 activations, where every row has a scale of
            its own by default; or for ``gptq``.
        texts: a file of texts, one a line: what the precision costs on them is measured, and stands in the manifest.
        tokenizer: a ``tokenizer.json`` for a source that has none, or the tokenizer object of a transformers model.
        provider: where to prove, ``cpu`` or ``cuda``; default: the target's where that loads, else ``cpu``.
        lengths: check these lengths in tokens in place of the grid's; the bundle is then "checked", not "proven".
        threads: to compute with; 0 lets the runtime choose.
        verify: prove the bundle; otherwise it is marked as unproven.
        keep: write a bundle that misses parity too, marked as unproven.
        force: replace a bundle that is at ``output``.
        allow_pickle: read ``.bin`` weights too (with ``weights_only``).
        as_transformers: of a checkpoint, compute what transformers' code does where it differs from the paper.
        progress, remark: called with the state of the work, and with sentences about the source.

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
    from posexport.conversion.options import ConvertOptions
    from posexport.sources.resolve import LoadOptions
    from posexport.targets.precision_options import options_of

    names = [precision] if isinstance(precision, str) else list(precision)
    precisions = options_of(
        names,
        io=io,
        keep_float=list(keep_float),
        weight_only=weight_only,
        block_size=block_size,
        quantizer=quantizer,
    )
    options = ConvertOptions(
        load=LoadOptions(
            task=task,
            settings=_pairs(settings),
            allow_pickle=allow_pickle,
            as_transformers=as_transformers,
            example_inputs=example_inputs,
            axes=axes,
        ),
        opset=opset,
        max_length=max_length,
        beyond=beyond,
        cache=cache,
        rotate=rotation,
        layout=layout,
        target=target,
        lowering=lowering,
        inline=inline,
        precision=precisions[0],
        variants=tuple(precisions[1:]),
        calibrate=None if calibrate is None else Path(calibrate),
        texts=None if texts is None else Path(texts),
        tokenizer=tokenizer,
        provider=provider,
        lengths=lengths,
        threads=threads,
        verify=verify,
        keep=keep,
        force=force,
    )
    return run(_named(source), Path(output), options, progress=progress, remark=remark or _ignore)


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
        settings=_pairs(settings),
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


def _pairs(settings: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Settings as the ``KEY=VALUE`` pairs of the command line."""

    def text(value: Any) -> str:
        return ",".join(map(text, value)) if isinstance(value, list | tuple) else str(value)

    return tuple(f"{key}={text(value)}" for key, value in (settings or {}).items())


def _ignore(_sentence: str) -> None:
    """Nobody asked for remarks; they are part of the result."""
