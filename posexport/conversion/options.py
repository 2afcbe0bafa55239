"""The options of a conversion."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from posexport.base.options import commands
from posexport.base.options.check import check_options
from posexport.base.options.option import EXPERT, GRAPH, LENGTHS, OUTPUT, PRECISION, PROOF, SOURCE, Option, StrPath
from posexport.base.options.recipe import ADAPTER_INPUTS, AdapterFormatName, CachePrecision, InputName, Recipe
from posexport.base.targets.precisions import FP32, INT4_BITS, STORED, PrecisionName, PrecisionOptions, for_each
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import is_portable
from posexport.sources.load_options import LoadOptions

if TYPE_CHECKING:
    from posexport.graph.precision.blocks.stored_rows import StoredRows

#: the headings of ``posexport convert --help``, in their order
GROUPS = (SOURCE, LENGTHS, GRAPH, PRECISION, OUTPUT, PROOF, EXPERT)


class ConvertOptions(Recipe, frozen=True, kw_only=True):
    """The options of ``posexport convert``; the defaults are the right choice for most.

    A bundle records the fields of the base classes, which decide the files. The fields here are not recorded, or in
    another form.
    """

    task: commands.Task = None  # type: ignore[assignment]
    settings: commands.Settings = None  # type: ignore[assignment]
    tokenizer: Annotated[
        StrPath | Any | None,
        Option(
            group=SOURCE,
            help="A tokenizer.json, for a SOURCE that has none.",
            python="A ``tokenizer.json`` for a source that has none, or the tokenizer object of a transformers model.",
        ),
    ] = None
    drop_weights: commands.DropWeights = ()
    adapters: commands.Adapters = None  # type: ignore[assignment]
    adapter_format: Annotated[
        AdapterFormatName,
        Option(
            group=EXPERT,
            help="stacked: the graph has all of --adapters; onnxruntime: a file NAME.onnx_adapter for each, for ONNX "
            "Runtime's LoraAdapter.",
            python="``stacked``: the graph has all ``adapters``; ``onnxruntime``: a file ``NAME.onnx_adapter`` for "
            "each, for ONNX Runtime's ``LoraAdapter``.",
        ),
    ] = "stacked"
    allow_pickle: commands.AllowPickle = False
    example_inputs: commands.ExampleInputs = None
    axes: commands.Axes = None
    opset: Annotated[
        int | None,
        Option(
            group=EXPERT,
            help="ONNX opset of the graph; default 18, with --target cpu 23, with --target cuda 24.",
        ),
    ] = None  # type: ignore[assignment]
    outputs: Annotated[
        Sequence[str],
        Option(
            group=OUTPUT,
            metavar="KIND:LAYERS",
            help="Also return hidden_states:3,7 (0: the embeddings), attentions:10.5 (layer 10, head 5; without a "
            "head: all) or of an encoder-decoder cross_attentions:2.1; cross_attentions: the heads of Whisper's times "
            "of words (repeatable).",
            python='Also return these of layers: ``["hidden_states:3,7", "attentions:10.5", "cross_attentions:2.1"]``. '
            "Hidden state 0 is the embeddings'; 10.5 is head 5 of layer 10. ``cross_attentions`` alone: the heads of "
            "Whisper's times of words.",
        ),
    ] = ()
    static_sizes: Annotated[
        Mapping[str, Any] | Sequence[str],
        Option(
            group=GRAPH,
            flag="static",
            metavar="AXIS=SIZE,...",
            help="One size for batch_size, sequence_length, or height and width, such as "
            "batch_size=1,sequence_length=128, for NPUs, CoreML and DirectML: no node computes sizes, shorter texts "
            "are padded (repeatable).",
            python='One size for axes of the graph: ``{"batch_size": 1, "sequence_length": 128}``. Shorter texts are '
            "padded.",
        ),
    ] = ()  # type: ignore[assignment]
    int32: Annotated[
        bool, Option(group=EXPERT, help="Integer inputs as int32, for NPUs and providers without int64.")
    ] = False
    cache_precision: Annotated[
        CachePrecision,
        Option(
            group=LENGTHS,
            help="Numbers of the KV cache: the model's, or int8 with a scale for each token and head, a quarter of "
            "the memory.",
        ),
    ] = "model"
    input: Annotated[
        InputName,
        Option(
            group=GRAPH,
            help="embeddings: the graph takes inputs_embeds, from embed_tokens.onnx or from you (soft prompts).",
        ),
    ] = "ids"
    first_output: Annotated[
        str | None,
        Option(
            group=OUTPUT,
            metavar="NAME",
            help="The output that comes first in the file, such as sentence_embedding for search engines that read the "
            "first one.",
        ),
    ] = None  # type: ignore[assignment]
    precision: Annotated[
        PrecisionName | Sequence[PrecisionName],
        Option(
            group=PRECISION,
            help="Precision of the model that is written; positions stay float32. Repeatable with --layout "
            "transformers.js.",
            python='Of weights and activations; positions stay float32. Several with ``layout="transformers.js"``.',
        ),
    ] = FP32.name  # type: ignore[assignment]
    calibrate: Annotated[
        StrPath | None,
        Option(
            group=PRECISION,
            metavar="FILE",
            help="With int8: static scales of activations, measured on these texts, one a line. With gptq: its texts.",
        ),
    ] = None  # type: ignore[assignment]
    evaluate: Annotated[
        StrPath | None,
        Option(
            group=PRECISION,
            metavar="FILE",
            help="Measure what the precision costs on these texts, one a line: cosine, top-1, perplexity against "
            "float32.",
        ),
    ] = None
    force: Annotated[bool, Option(group=OUTPUT, help="Replace an existing bundle.")] = False
    keep_failed: Annotated[
        bool, Option(group=EXPERT, help="Keep a bundle whose proof failed, marked as not proven.")
    ] = False
    verify: Annotated[
        bool,
        Option(
            group=PROOF,
            flag="no-verify",
            help="Skip the proof; the bundle is marked as not proven.",
            python="Prove the bundle; otherwise it is marked as not proven.",
        ),
    ] = True
    proof: commands.Proof = "auto"
    lengths: commands.Lengths = None
    provider: Annotated[
        str | None,
        Option(
            group=PROOF,
            help="Provider to verify on. Fails if it is not available. Default: the target's, else cpu.",
        ),
    ] = None
    threads: commands.Threads = 0
    progress: commands.ProgressCall = None
    remark: commands.RemarkCall = None

    @property
    def load(self) -> LoadOptions:
        return LoadOptions.of(self)

    def by_precision(self) -> "list[ConvertOptions]":
        """The options for each precision; options that do not fit a precision have their defaults there.

        Raises:
            PosexportError: options contradict each other.
        """
        check_options(self)
        names = [self.precision] if isinstance(self.precision, str) else [*self.precision]
        options = for_each(names, self)
        _check_names(names, self.layout)
        _check_texts(self, options)
        _check_cache(options[0])
        _check_adapter_files(options)
        return options


def for_stored_rows(options: ConvertOptions, name: str, rows: "StoredRows | None") -> ConvertOptions:
    """The options for a source whose weights have 4 bits (``rows``): with ``int4`` they are kept unless told otherwise.

    Raises:
        PosexportError: ``--quantizer stored`` where nothing is stored in 4 bits, or not in a way that can be kept.
    """
    asked = options.quantizer == STORED
    default = options.weight_bits == INT4_BITS and options.quantizer == PrecisionOptions().quantizer
    if not asked and (rows is None or not default):
        return options
    if not rows or rows.unequal:
        what = "has groups of several sizes (g_idx)" if rows and rows.unequal else "has no such weights"
        raise PosexportError(
            f"--quantizer {STORED} keeps the 4 bits of a checkpoint, and {name} {what}; give --quantizer hqq to round "
            "its weights again, or --precision fp16"
        )
    return msgspec.structs.replace(options, quantizer=STORED, block_size=rows.size)


def _check_names(names: Sequence[PrecisionName], layout: str) -> None:
    """PosexportError where the layout holds one precision, or one is named twice."""
    from posexport.base.options.recipe import LAYOUTS

    if len(set(names)) < len(names):
        raise PosexportError(f"each precision once, got --precision {' --precision '.join(names)}")
    if len(names) > 1 and layout not in (several := [name for name, known in LAYOUTS.items() if known.names_precision]):
        raise PosexportError(
            f"--precision {' and '.join(names)} in one directory need --layout {' or '.join(several)}, got --layout "
            f"{layout}; convert once for each precision otherwise"
        )


def _check_cache(options: ConvertOptions) -> None:
    """PosexportError where a KV cache in 8 bits has no reader."""
    if options.cache_precision != "model" and options.layout != "bundle":
        raise PosexportError(
            f"--layout {options.layout} is for a library that fills the KV cache with floating-point numbers, got "
            f"--cache-precision {options.cache_precision}; leave one of both out"
        )


def _check_texts(options: ConvertOptions, by_precision: Sequence[ConvertOptions]) -> None:
    """Raises PosexportError for texts that nothing reads, and where texts are needed and missing."""
    first = by_precision[0]
    if options.calibrate is not None and not any(one.reads_texts for one in by_precision):
        raise PosexportError(
            f"--calibrate measures scales of int8 activations, got --precision {first.precision}"
            f"{' --weight-only' if first.weight_only else ''}; give --precision int8, or --quantizer gptq "
            "with int4, or leave it out"
        )
    if options.calibrate is None and any(one.quantizer == "gptq" for one in by_precision):
        raise PosexportError(
            "--quantizer gptq makes errors small on texts, got none; give --calibrate FILE with texts, one a line, "
            "or --quantizer hqq, which needs none"
        )
    if options.evaluate is not None and all(one.precision == FP32.name for one in by_precision):
        raise PosexportError(
            "--evaluate measures what a precision costs against float32, got --precision fp32; give another, such as "
            "int8, or leave --evaluate out"
        )


def _check_adapter_files(by_precision: Sequence[ConvertOptions]) -> None:
    """PosexportError for adapters in files without adapters, and where they have not been tried."""
    options = by_precision[0]
    if options.adapter_format != ADAPTER_INPUTS:
        return
    flag = f"--adapter-format {ADAPTER_INPUTS}"
    if not options.adapters:
        raise PosexportError(f"{flag} is for --adapters NAME=DIR, and there are none; give some, or leave it out")
    if unfit := [name for name, _ in options.load.adapters if "/" in name or not is_portable(name)]:
        raise PosexportError(f"{flag} names files by adapters, and {unfit[0]!r:.60} is no file's name; give another")
    if options.computed != FP32.name or options.static_sizes or options.int32:
        raise PosexportError(
            f"{flag} is for graphs that compute in float32, with axes of any size and int64 inputs, got --precision "
            f"{options.precision}{' --static' if options.static_sizes else ''}{' --int32' if options.int32 else ''}; "
            "leave one of both out"
        )
