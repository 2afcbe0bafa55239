"""What a conversion may be told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any

from posexport.errors import PosexportError
from posexport.options.option import Option, StrPath
from posexport.options.recipe import GRAPH, LENGTHS, OUTPUT, SOURCE, Recipe
from posexport.sources.load import LoadOptions
from posexport.targets.precision_options import PRECISION, for_each
from posexport.targets.precisions import FP32, PrecisionName

#: told what is done, of how many, and what is being done
Progress = Callable[[int, int, str], None]
#: told sentences that a user should know beside the result
Remark = Callable[[str], None]

PROOF = "Proof"
#: the headings of ``posexport convert --help``, in their order
GROUPS = (SOURCE, LENGTHS, GRAPH, PRECISION, OUTPUT, PROOF)


class ConvertOptions(Recipe, frozen=True, kw_only=True):
    """What ``posexport convert`` may be told; the defaults are the right choice for most.

    The one list of its options: those that decide what is written are fields of the classes above, the others and
    those that are recorded in another form than they are asked for stand here.
    """

    task: Annotated[
        str | None,
        Option(
            group=SOURCE,
            complete="tasks",
            help="What the model is for, see posexport list tasks; default: from the checkpoint.",
        ),
    ] = None  # type: ignore[assignment]
    settings: Annotated[
        Mapping[str, Any] | Sequence[str] | None,
        Option(
            group=SOURCE,
            flag="set",
            metavar="KEY=VALUE",
            complete="settings",
            help="Set an option of a built-in model, e.g. --set layers=4 (repeatable); see posexport list models.",
            python='Options of a built-in model, such as ``{"layers": 4, "clip": 8}``; see posexport list models.',
        ),
    ] = None  # type: ignore[assignment]
    tokenizer: Annotated[
        StrPath | Any | None,
        Option(
            group=SOURCE,
            help="A tokenizer.json, for a SOURCE that has none.",
            python="A ``tokenizer.json`` for a source that has none, or the tokenizer object of a transformers model.",
        ),
    ] = None
    allow_pickle: Annotated[
        bool, Option(group=SOURCE, help="Also read .bin weights (with weights_only; safetensors are preferred).")
    ] = False
    example_inputs: Annotated[
        Any,
        Option(python="Of a module: tensors by the names of ``forward``'s arguments, or a tuple in their order."),
    ] = None
    axes: Annotated[
        Mapping[str, Sequence[str | int]] | None,
        Option(
            python="Of a module, by input: names of the axes that vary, sizes of the others; needed where the first "
            'two axes are not batch and sequence. ``{"x": ["batch_size", "sequence_length", 16]}``'
        ),
    ] = None
    opset: Annotated[
        int | None,
        Option(
            group=GRAPH,
            help="ONNX opset of the graph; default 18, with --target cpu or cuda 23.",
        ),
    ] = None  # type: ignore[assignment]
    precision: Annotated[
        PrecisionName | Sequence[PrecisionName],
        Option(
            group=PRECISION,
            help="Of weights and activations; positions stay float32. Repeatable with --layout transformers.js.",
            python='Of weights and activations; positions stay float32. Several with ``layout="transformers.js"``.',
        ),
    ] = FP32.name  # type: ignore[assignment]
    calibrate: Annotated[
        StrPath | None,
        Option(
            group=PRECISION,
            metavar="TEXTS",
            help="With int8: static scales of activations, measured on these texts, one a line. With gptq: its texts.",
        ),
    ] = None  # type: ignore[assignment]
    texts: Annotated[
        StrPath | None,
        Option(
            group=PRECISION,
            metavar="FILE",
            help="Measure what the precision costs on these texts, one a line: cosine, top-1, perplexity against "
            "float32.",
        ),
    ] = None
    force: Annotated[bool, Option(group=OUTPUT, help="Replace an existing bundle.")] = False
    keep: Annotated[bool, Option(group=OUTPUT, help="Keep a bundle whose proof failed, marked as not proven.")] = False
    verify: Annotated[
        bool,
        Option(
            group=PROOF,
            flag="no-verify",
            help="Skip the proof; the bundle is marked as not proven.",
            python="Prove the bundle; otherwise it is marked as not proven.",
        ),
    ] = True
    lengths: Annotated[
        Sequence[int] | None,
        Option(
            group=PROOF,
            flag="length",
            metavar="N",
            least=1,
            help="Check this length in tokens in place of the default grid (repeatable).",
            python='Check these lengths in tokens in place of the grid\'s; the bundle is then "checked", not "proven".',
        ),
    ] = None
    provider: Annotated[
        str | None,
        Option(
            group=PROOF,
            help="Provider to verify on: cpu or cuda. Fails if it is not available. Default: the target's, else cpu.",
        ),
    ] = None
    threads: Annotated[
        int,
        Option(
            group=PROOF,
            metavar="N",
            least=0,
            most=1024,
            show_default=False,
            help="Threads of one operator; 0 lets the runtime choose.",
        ),
    ] = 0
    progress: Annotated[
        Progress | None, Option(python="Called with what is done, of how many, and what is being done.")
    ] = None
    remark: Annotated[Remark | None, Option(python="Called with sentences about the source and the proof.")] = None

    @property
    def load(self) -> LoadOptions:
        """What is said about the source."""
        about = {field.name: getattr(self, field.name) for field in fields(LoadOptions) if hasattr(self, field.name)}
        return LoadOptions(**{**about, "settings": pairs(self.settings)})

    def each(self) -> "list[ConvertOptions]":
        """The options for one precision each, in which those that do not fit it have their defaults.

        Raises:
            PosexportError: options contradict each other.
        """
        names = [self.precision] if isinstance(self.precision, str) else [*self.precision]
        each = for_each(names, self)
        _check_names(names, self.layout)
        _check_texts(self, each)
        return each


def pairs(settings: Mapping[str, Any] | Sequence[str] | None) -> tuple[str, ...]:
    """Settings as the ``KEY=VALUE`` pairs of the command line."""

    def text(value: Any) -> str:
        return ",".join(map(text, value)) if isinstance(value, list | tuple) else str(value)

    if isinstance(settings, Mapping):
        return tuple(f"{key}={text(value)}" for key, value in settings.items())
    return tuple(settings or ())


def _check_names(names: Sequence[PrecisionName], layout: str) -> None:
    """PosexportError where the layout holds one precision, or one is named twice."""
    from posexport.options.layouts import LAYOUTS

    if len(set(names)) < len(names):
        raise PosexportError(f"each precision once, got --precision {' --precision '.join(names)}")
    several = [name for name, each in LAYOUTS.items() if each.names_precision]
    if len(names) > 1 and layout not in several:
        raise PosexportError(
            f"--precision {' and '.join(names)} in one directory need --layout {' or '.join(several)}, got --layout "
            f"{layout}; convert once for each precision otherwise"
        )


def _check_texts(options: ConvertOptions, each: Sequence[ConvertOptions]) -> None:
    """PosexportError where texts are given that nothing reads, or none that something needs."""
    if options.calibrate is not None and not any(one.reads_texts for one in each):
        raise PosexportError(
            f"--calibrate measures scales of int8 activations, got --precision {each[0].precision}"
            f"{' --weight-only' if each[0].weight_only else ''}; give --precision int8, or --quantizer gptq "
            "with int4, or leave it out"
        )
    if options.calibrate is None and any(one.quantizer == "gptq" for one in each):
        raise PosexportError(
            "--quantizer gptq makes errors small on texts, got none; give --calibrate FILE with texts, one a line, "
            "or --quantizer hqq, which needs none"
        )
    if options.texts is not None and all(one.precision == FP32.name for one in each):
        raise PosexportError(
            "--texts measures what a precision costs against float32, got --precision fp32; give another, such as "
            "int8, or leave --texts out"
        )
