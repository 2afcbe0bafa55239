"""``posexport.json``: what a bundle is, what it was proven to do, and every file in it.

The format, version 1. A manifest

- is UTF-8 JSON of at most 4 MB, an object with exactly the fields of `Manifest`;
- has ``format_version`` 1; a manifest of another version is rejected with the advice to convert again;
- holds nothing of the machine that wrote it but versions of tools: no path, no name of a user;
- lists every file of the bundle but itself, by a relative name with ``/`` between its parts, with size and sha256;
- lists ``model.onnx``, or the files of its ``parts``: graphs that run in turn, as `PartSpec` says.

Files that are not listed are no part of the bundle: nothing reads them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from posexport.errors import PosexportError
from posexport.options.recipe import Recipe
from posexport.spec import ENCODER_PAST, Axis, InputSpec, ModelSpec, PartSpec, SourceKind, is_cache_output
from posexport.spec import MODEL as MODEL
from posexport.targets.dtypes import MODEL_DTYPE
from posexport.targets.precisions import PrecisionName
from posexport.targets.target import PORTABLE, TargetName

FORMAT_VERSION = 1
MANIFEST = "posexport.json"
#: every point of the proof
PARITY = "parity.json"
#: inputs and truths for a check without PyTorch (`posexport.parity.sample.header`)
SAMPLE = "parity.safetensors"
LARGEST = 4 * 1024 * 1024

Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, msgspec.Meta(ge=0)]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the manifest's objects: a field that is not known is an error, not a silence."""


class FileEntry(_Strict, frozen=True, kw_only=True):
    """One file of the bundle.

    Attributes:
        size: bytes.
        sha256: hash of the file.
    """

    size: Count
    sha256: Sha256


class SourceInfo(_Strict, frozen=True, kw_only=True):
    """What was converted.

    Attributes:
        name: name of the source, without folders.
        kind: where the source came from.
        sha256: hash of everything that determines the weights.
        revision: the commit on the Hugging Face Hub; None for other sources.
    """

    name: str
    kind: SourceKind
    sha256: Sha256
    revision: str | None = None


class BranchRun(_Strict, frozen=True, kw_only=True):
    """A branch of the graph (one side of an If, the body of a Scan or Loop) and the first point that ran it.

    Attributes:
        branch: name of the branch.
        covered_by: the first grid point that ran it; None: none did.
        note: why no point ran it.
    """

    branch: str
    covered_by: str | None
    note: str = ""


class ParitySummary(_Strict, frozen=True, kw_only=True):
    """How the proof went.

    Attributes:
        points: compared outputs and rejected inputs.
        passed: comparisons within their tolerance.
        skipped: points that were not checked, such as points too large for the machine's memory.
        rejected: inputs beyond a limit that the graph rejected, as it must.
        worst_error: error of the comparison that came nearest to its tolerance; None: nothing was compared.
        worst_tolerance: tolerance of that comparison.
        complete: the whole grid was checked and nothing was skipped.
        longest_passed: tokens of the longest input that was compared and passed.
    """

    points: Count
    passed: Count
    skipped: Count
    rejected: Count
    worst_error: float | None
    worst_tolerance: float | None
    complete: bool
    longest_passed: Count | None = None


class OutputAgreement(_Strict, frozen=True, kw_only=True):
    """How far an output agrees with the reference.

    Attributes:
        cosine: mean cosine of a token's vector; of an output with one vector a text, of a text's.
        least_cosine: the smallest.
        top_1: the part of the tokens whose largest element is the same; None for what is no logits.
    """

    cosine: float
    least_cosine: float
    top_1: float | None = None


class TextAgreement(_Strict, frozen=True, kw_only=True):
    """Agreement with the same graph in float32 on the user's own texts.

    Attributes:
        texts: how many were compared.
        sha256: hash of their file.
        fewest_tokens: tokens of the shortest.
        most_tokens: tokens of the longest.
        outputs: by output, agreement with the same graph in float32.
        perplexity_ratio: of a decoder with logits: perplexity relative to float32; None for other models.
    """

    texts: Count
    sha256: Sha256
    fewest_tokens: Count
    most_tokens: Count
    outputs: dict[str, OutputAgreement]
    perplexity_ratio: float | None = None


class PrecisionCost(_Strict, frozen=True, kw_only=True):
    """What a precision below float32 was measured to cost.

    Attributes:
        weights: bytes of the weights, relative to those of the same graph in float32.
        on_grid: by output, agreement of a quantized graph with PyTorch in float64 on the random inputs of the
            proof; ``present.*`` are all cache tensors.
        on_texts: agreement on the user's own texts (``--texts``); None where none were given.
        range_on_grid: largest magnitude that a graph in float16 computes at the points of the proof (its largest
            number is 65504); None in other precisions.
        range_on_texts: the same on the user's own texts; None where none were given, or a GPU computed.
    """

    weights: float
    on_grid: dict[str, OutputAgreement] = {}
    on_texts: TextAgreement | None = None
    range_on_grid: float | None = None
    range_on_texts: float | None = None


class LoweringSpec(_Strict, frozen=True, kw_only=True):
    """How the nodes of one type are computed.

    Attributes:
        lowering: the lowering that was chosen.
        nodes: how many nodes of this type the graph has.
        rejected: every other lowering, with the reason why it was not chosen.
    """

    lowering: str
    nodes: Count
    rejected: dict[str, str]


class PassSpec(_Strict, frozen=True, kw_only=True):
    """What a graph pass did.

    Attributes:
        nodes: how many nodes the pass changed.
        rejected: why the pass did not run, or why it left other nodes as they are.
        recognised: what it found in a module of the user's, such as a bias of positions and its parameters.
    """

    nodes: Count
    rejected: list[str] = []
    recognised: list[str] = []


class Manifest(ModelSpec, _Strict, frozen=True, kw_only=True):
    """A bundle's manifest, ``posexport.json``.

    Attributes:
        format_version: version of this format; a reader rejects versions that it does not know.
        posexport: the version of posexport that wrote the bundle.
        source: what was converted.
        parts: the graphs of a model that has several (encoder and decoder), in the order in which they run.
        precision: precision of weights and activations.
        precision_by_class: class of tensors and what they are stored in, such as ``int8 per channel``; empty: all
            as ``precision`` says.
        projections: of a quantized model, how many linear projections have weights of which type: ``int4``,
            ``int8``, ``float``; all graphs together, packed ones as one.
        cost: what a precision below float32 was measured to cost; None for float32.
        variants: further precisions in this directory, each with a manifest such as ``posexport.int8.json``.
        target: ``portable``: standard operators only; ``cpu``, ``cuda``: also ONNX Runtime's own operators.
        recipe: every resolved option of the conversion; ``verify --against`` rebuilds the same definition from
            it.
        opset: version of the standard operators.
        ir_version: version of the ONNX file format.
        session_options: ONNX Runtime's session options that change what the graphs answer, as the proof's sessions and
            those of `posexport.load` have them; a client that sets them (in Python by ``add_session_config_entry``)
            gets the same values.
        functions: the functions of domain ``posexport`` in the graph.
        lowerings: for each type of function node: which lowering was chosen, and why the others were not.
        passes: for each graph pass, in the order in which they run: how many nodes it changed, and why not
            others.
        files: every other file of the bundle.
        tokenizer: what the ids of ``tokenizer.json`` were compared with, such as ``compared with transformers 5.24.0``,
            or ``by rules``; None: the bundle has no tokenizer.
        tools: versions of the libraries that made the bundle.
        parity: summary of the proof; None with ``--no-verify``.
        proven: the whole grid passed, every branch of the graph ran, and no point was skipped; of int8 and
            int4, the graph in float32 did, and the quantized one agrees with it by
            [figures](parity.md#quantized-graphs).
        proven_on: the providers on which that holds.
        proven_in_emulation: that holds for a copy which computes in float32 and rounds, as for half precision
            on a machine without a GPU.
        emulated: by what such a copy computed the graphs' operators: ``kernel``: a kernel of ONNX Runtime's for the
            CPU, in float32; ``function``: their definition in other operators. Their outputs were rounded.
        checked_lengths: the lengths in tokens that were checked instead of the grid (``--length``); empty: the
            grid.
        coverage: every branch of the graph (a side of an ``If``, the body of a ``Scan`` or ``Loop``).
        created: ISO 8601 time.
    """

    format_version: int = FORMAT_VERSION
    posexport: str
    source: SourceInfo
    parts: list[PartSpec] = []
    precision: PrecisionName = MODEL_DTYPE.precision
    precision_by_class: dict[str, str] = {}
    projections: dict[str, Count] = {}
    cost: PrecisionCost | None = None
    variants: list[PrecisionName] = []
    target: TargetName = PORTABLE
    recipe: Recipe
    opset: int
    ir_version: int
    session_options: dict[str, str] = {}
    functions: list[str]
    lowerings: dict[str, LoweringSpec]
    passes: dict[str, PassSpec] = {}
    files: dict[str, FileEntry]
    tokenizer: str | None = None
    tools: dict[str, str]
    parity: ParitySummary | None
    proven: bool
    proven_on: list[str] = []
    proven_in_emulation: bool = False
    emulated: dict[str, list[str]] = {}
    checked_lengths: list[int] = []
    coverage: list[BranchRun] = []
    created: str


class _Version(msgspec.Struct):
    """The one field that every version has, read first so that a manifest of another one is named as such."""

    format_version: int


def encode(manifest: Manifest) -> bytes:
    """The manifest as JSON that people can read, ending in a newline; what was written by what comes first."""
    fields = msgspec.to_builtins(manifest)
    first = {name: fields[name] for name in ("format_version", "posexport", "source")}
    return msgspec.json.format(msgspec.json.encode(first | fields), indent=2) + b"\n"


def decode(data: bytes) -> Manifest:
    """The manifest in ``data``; PosexportError says what is wrong with it, without naming a file."""
    if len(data) > LARGEST:
        raise PosexportError(f"it has {len(data)} bytes, a manifest has at most {LARGEST}")
    try:
        version = msgspec.json.decode(data, type=_Version).format_version
        if version != FORMAT_VERSION:
            raise PosexportError(
                f"it has format version {version}, this posexport reads {FORMAT_VERSION}: convert the model again"
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except RecursionError:
        raise PosexportError("it is nested too deeply for a manifest") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as err:
        raise PosexportError(f"it is not a manifest: {err}") from err
    _agree(manifest)
    return manifest


def _agree(manifest: Manifest) -> None:
    """What the types cannot say."""
    for file in [part.file for part in manifest.parts] or [MODEL]:
        if file not in manifest.files:
            raise PosexportError(f"it does not list {file}")
    for name in manifest.files:
        if not plain(name):
            raise PosexportError(f"it lists the file {name!r}, whose name must be relative and stay in the bundle")
    for kind, specs in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
        names = [spec.name for spec in specs]
        if not names or len(set(names)) < len(names):
            raise PosexportError(f"its {kind} must be named, each once, got {names}")
    if manifest.parts:
        _fit(manifest)


def _fit(manifest: Manifest) -> None:
    """The parts get what they are fed, each thing of one kind and size, and give all that the whole gives."""
    known: dict[str, tuple[str, list[Axis]]] = {spec.name: (spec.dtype, spec.axes) for spec in manifest.inputs}
    given: set[str] = set()
    first: set[str] = set()
    for part in manifest.parts:
        for spec in part.inputs:
            source = part.input_names.get(spec.name)
            if source is None and spec.role == "cache":
                continue  # empty
            if source is None or not _takes(spec, known.get(source)):
                raise PosexportError(f"its part {part.file} takes {spec.name}, and nothing that fits feeds it")
        names = {spec.name: spec.axes for spec in part.outputs}
        # what does not change in later calls is not given again
        all_given = set(part.output_names) == set(names) or (
            part.when == "later" and set(part.output_names) < set(names)
        )
        if not set(part.input_names) <= {spec.name for spec in part.inputs} or not all_given:
            raise PosexportError(f"its part {part.file} feeds or gives what it does not have")
        outputs = {whole: (_output_dtype(manifest, own), names[own]) for own, whole in part.output_names.items()}
        taken = known.keys() & outputs.keys()
        if part.when == "later" and taken <= first:
            # in calls of its own it gives what the part for first calls gives in the others
            taken = {whole for whole in taken if known[whole] != outputs[whole]}
        if len(outputs) < len(part.output_names) or taken:
            raise PosexportError(f"its part {part.file} gives an output a name that is already used")
        first |= outputs.keys() if part.when == "first" else set()
        known |= outputs
        given |= outputs.keys()
    if lacking := [
        spec.name for spec in manifest.outputs if spec.name not in given or known[spec.name][1] != spec.axes
    ]:
        raise PosexportError(f"none of its parts gives {lacking[0]} as it says")


def _output_dtype(manifest: Manifest, name: str) -> str:
    """The type of a part's output."""
    recipe = manifest.recipe
    half = recipe.io == "half" or is_cache_output(name)
    return recipe.dtype.name if half else MODEL_DTYPE.name


def _takes(spec: InputSpec, given: tuple[str, list[Axis]] | None) -> bool:
    """Whether an input fits what is known as its source."""
    if given is None or given[0] != spec.dtype or len(given[1]) != len(spec.axes):
        return False
    # of all states, or of none
    return all(own in (axis, ENCODER_PAST) for own, axis in zip(spec.axes, given[1], strict=True))


def model_of(directory: Path, parts: Sequence[object]) -> Path:
    """Where the graph of a bundle is; of one that has ``parts``, the directory of their files."""
    return directory if parts else directory / MODEL


def plain(name: str) -> bool:
    """Whether a file name is relative, portable and cannot leave the directory it is used in."""
    parts = name.split("/")
    return (
        name.isprintable()
        and not any(character in name for character in '\\:*?"<>|')
        and all(part not in ("", ".", "..") for part in parts)
        and name != MANIFEST
    )
