"""The recipe in a manifest: every option that decides what a conversion writes, to reproduce it.

It holds names, numbers and hashes, never paths: a recipe is the same wherever and by whomever a model was converted.
Its keys are the names of options of ``posexport convert``.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from posexport.base.options.option import EXPERT, GRAPH, LENGTHS, OUTPUT, SOURCE, Option
from posexport.base.registry import Registry
from posexport.base.spec import Beyond
from posexport.base.targets.precisions import PrecisionOptions
from posexport.base.targets.providers import targets
from posexport.base.targets.target import PORTABLE, target_names

#: each a `posexport.conversion.export.layout.Layout`; a package adds one by an entry point of the group
#: ``posexport.layouts``
LAYOUTS: Registry[Any] = Registry(
    "layouts",
    "posexport.conversion.export.layout:Layout",
    {
        "bundle": "posexport.conversion.export.layout:BUNDLE",
        "genai": "posexport.serve.layouts.genai:GENAI",
        "optimum": "posexport.serve.layouts.optimum:OPTIMUM",
        "sentence-transformers": "posexport.serve.layouts.sentence_transformers:SENTENCE_TRANSFORMERS",
        "transformers.js": "posexport.serve.layouts.transformers_js:TRANSFORMERS_JS",
    },
)


def layout_names() -> tuple[str, ...]:
    """The values of ``--layout``, with names of installed packages."""
    return LAYOUTS.names


CacheName = Literal["dynamic", "static"]
CachePrecision = Literal["model", "int8"]
RotationName = Literal["at-write", "at-read"]
#: what stands for a token in the input
InputName = Literal["ids", "embeddings"]
#: how a graph has LoRA adapters: stacks that rows choose from, or inputs with defaults, and a file for each adapter
AdapterFormatName = Literal["stacked", "onnxruntime"]
ADAPTER_INPUTS: AdapterFormatName = "onnxruntime"
#: which computation of a checkpoint is converted
DefinitionName = Literal["paper", "released", "transformers"]


class Recipe(PrecisionOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of ``posexport convert`` as they were resolved.

    An option belongs here if it decides what is written, else to its subclass
    `posexport.conversion.options.ConvertOptions`. Fields without an `Option` are recorded in
    another form than users give them.

    Attributes:
        task: the source's, also where nobody named it.
        settings: of a built-in model, as text.
        opset: of the graph, also where nobody named it.
        unpad: True with ``--unpad``, False with ``--no-unpad``.
        drop_weights: patterns of tensors that are left out; not there: none.
        outputs: of layers, beside the task's; not there: none.
        static_sizes: the size of each axis of the graph that does not vary; not there: all vary.
        int32: integer inputs are int32; not there: int64.
        cache_precision: of keys and values in the KV cache; not there: the model's.
        input: what the graph that computes takes: embeddings, of which another makes them of ids; not there: token ids.
        first_output: the output that comes first in the graph; not there: the task's order.
        adapters: names of LoRA adapters, in the order of their ids; not there: none.
        adapter_format: ``onnxruntime``: adapters are inputs with defaults; not there: constants.
    """

    task: str
    settings: Mapping[str, Any] = {}
    definition: Annotated[
        DefinitionName,
        Option(
            group=SOURCE,
            help="How a checkpoint computes. paper: as the encoding's paper says; released: as transformers' code does "
            "where the two differ; transformers: by transformers' model, as types always do that posexport does not "
            "define.",
        ),
    ] = "paper"
    drop_weights: Sequence[str] | msgspec.UnsetType = msgspec.UNSET
    max_length: Annotated[
        int | None, Option(group=LENGTHS, metavar="N", least=1, help="The longest input, in tokens.")
    ] = None
    beyond: Annotated[
        Beyond,
        Option(
            group=LENGTHS,
            help="Inputs beyond the trained length: error, clip the distances, or interpolate the table up to "
            "--max-length.",
        ),
    ] = "error"
    cache: Annotated[
        CacheName,
        Option(
            group=LENGTHS,
            help="KV cache of a decoder: dynamic is reallocated each step, static is a fixed-size buffer.",
        ),
    ] = "dynamic"
    rotation: Annotated[
        RotationName,
        Option(
            group=EXPERT,
            help="When RoPE is applied to keys: as they are written to the KV cache, or each time they are read.",
        ),
    ] = "at-write"
    target: Annotated[
        str,
        Option(
            group=GRAPH,
            words=target_names,
            help=f"portable: standard operators only; {', '.join(targets())}: for that provider of ONNX Runtime alone, "
            "by the operators and functions that it has.",
        ),
    ] = PORTABLE
    lowering: Annotated[
        str,
        Option(
            group=EXPERT,
            complete="lowerings",
            help="How attention is implemented in the graph, see posexport list lowerings.",
        ),
    ] = "auto"
    opset: int
    unpad: Annotated[
        bool | None,
        Option(
            group=EXPERT,
            flag="unpad/--no-unpad",
            help="Leave padding out of linear layers, and of attention on the CPU; or compute it. The default: left "
            "out with --target cpu and openvino; cuda can too, not measured.",
        ),
    ] = None
    inline: Annotated[
        bool, Option(group=EXPERT, help="Write no ONNX functions, for runtimes without them (OpenVINO).")
    ] = False
    outputs: Sequence[str] | msgspec.UnsetType = msgspec.UNSET
    static_sizes: Mapping[str, int] | msgspec.UnsetType = msgspec.UNSET
    int32: bool | msgspec.UnsetType = msgspec.UNSET
    cache_precision: CachePrecision | msgspec.UnsetType = msgspec.UNSET
    input: InputName | msgspec.UnsetType = msgspec.UNSET
    first_output: str | msgspec.UnsetType = msgspec.UNSET
    adapters: Sequence[str] | msgspec.UnsetType = msgspec.UNSET
    adapter_format: AdapterFormatName | msgspec.UnsetType = msgspec.UNSET
    layout: Annotated[
        str,
        Option(
            group=OUTPUT,
            words=layout_names,
            help="Whose files the directory looks like: posexport's own, onnxruntime-genai's, optimum's, "
            "sentence-transformers' or transformers.js'.",
        ),
    ] = "bundle"
