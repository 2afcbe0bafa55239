"""``posexport.json``: what a bundle is, what it was proven to do, and every file in it.

The format, version 3. A manifest

- is UTF-8 JSON of at most 4 MB, an object with exactly the fields of `Manifest`;
- has ``format_version`` 3; a reader that knows only lower versions rejects it and says so, whatever else it holds, and
  earlier versions, which have no recipe or other names of fields, are rejected with the advice to convert again;
- holds nothing of the machine that wrote it but versions of tools: no path, no name of a user;
- lists every file of the bundle but itself, by a relative name with ``/`` between its parts, with size and sha256;
- lists ``model.onnx``, or the files of its ``parts``: graphs that run in turn, as `PartSpec` says.

Files that are not listed are no part of the bundle: nothing reads them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from posexport.errors import PosexportError
from posexport.recipe import Recipe
from posexport.spec import ENCODER_PAST, Axis, EncodingSpec, InputSpec, Limits, OutputSpec, PartSpec, is_cache_output
from posexport.spec import MODEL as MODEL
from posexport.targets.dtypes import MODEL_DTYPE
from posexport.targets.precisions import PrecisionName
from posexport.targets.target import PORTABLE, TargetName

FORMAT_VERSION = 3
MANIFEST = "posexport.json"
#: every point of the proof
PARITY = "parity.json"
#: inputs and truths for a check without PyTorch (`posexport.parity.sample.header`)
SAMPLE = "parity.safetensors"
LARGEST = 4 * 1024 * 1024

Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, msgspec.Meta(ge=0)]


#: what JSON calls fields of the manifest
_NAMES = {
    "envelope": "limits",
    "reached": "covered_by",
    "refused": "rejected",
    "longest": "longest_passed",
    "stored": "precision_by_class",
}


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=_NAMES):
    """Base of the manifest's objects: a field that is not known is an error, not a silence."""


class FileEntry(_Strict, frozen=True, kw_only=True):
    """One file: ``size`` in bytes."""

    size: Count
    sha256: Sha256


class SourceInfo(_Strict, frozen=True, kw_only=True):
    """What was converted: its name without folders; ``sha256`` covers what determines the weights.

    A checkpoint that was named by its Hugging Face Hub id has that as ``name``, and its commit as ``revision``.
    """

    name: str
    kind: Literal["builtin", "python", "huggingface"]
    sha256: Sha256
    revision: str | None = None


class BranchRun(_Strict, frozen=True, kw_only=True):
    """A branch of the graph (one side of an If, the body of a Scan or Loop) and the first point that ran it.

    ``reached`` is None for a branch that no checked point ran; ``note`` says why.
    """

    branch: str
    reached: str | None
    note: str = ""


class ParitySummary(_Strict, frozen=True, kw_only=True):
    """How the proof went. ``refused`` points were refused by the length guard, as they should be.

    ``worst_error`` and ``worst_tolerance`` belong to the point that came nearest to its tolerance (None: no point was
    compared); ``complete`` says that the whole grid was checked, no point of it skipped.
    """

    points: Count
    passed: Count
    skipped: Count
    refused: Count
    worst_error: float | None
    worst_tolerance: float | None
    complete: bool
    #: tokens of the longest input that was compared and passed
    longest: Count | None = None


class OutputAgreement(_Strict, frozen=True, kw_only=True):
    """How an output agrees: mean and smallest cosine of a token (or text), how often its best class is the same.

    ``top_1`` is None for outputs that are no logits.
    """

    cosine: float
    least_cosine: float
    top_1: float | None = None


class TextAgreement(_Strict, frozen=True, kw_only=True):
    """Agreement with the same graph in float32 on the user's own texts, of ``fewest_tokens`` to ``most_tokens``.

    ``perplexity_ratio``: of a decoder, what a token costs more; None for other models.
    """

    texts: Count
    sha256: Sha256
    fewest_tokens: Count
    most_tokens: Count
    outputs: dict[str, OutputAgreement]
    perplexity_ratio: float | None = None


class PrecisionCost(_Strict, frozen=True, kw_only=True):
    """What a precision below float32 was measured to cost.

    ``weights``: their bytes against those of the same graph in float32. ``on_grid``: by output, of a quantized graph
    against the definition in float64, at the points of the proof, whose inputs are random.
    ``range_on_grid``, ``range_on_texts``: the largest magnitude that a graph in float16 computes there; its largest
    number is 65504.
    """

    weights: float
    on_grid: dict[str, OutputAgreement] = {}
    on_texts: TextAgreement | None = None
    range_on_grid: float | None = None
    range_on_texts: float | None = None


class LoweringSpec(_Strict, frozen=True, kw_only=True):
    """How the nodes of a type are computed: by ``lowering``; every other way by name, with why it was not taken."""

    lowering: str
    nodes: Count
    refused: dict[str, str]


class PassSpec(_Strict, frozen=True, kw_only=True):
    """What a graph pass did: how many nodes it changed, and why it did not run or left others as they are."""

    nodes: Count
    refused: list[str] = []


class Manifest(_Strict, frozen=True, kw_only=True):
    """A bundle's manifest.

    ``posexport`` is the version that wrote it, ``recipe`` the options it was converted with, ``lowerings`` says for
    every function of domain ``posexport`` how its nodes are computed, ``parts`` the graphs of a model that is not one
    graph, ``created`` is an ISO 8601 time. ``proven``: the whole grid passed, on the providers of ``proven_on``;
    ``checked_lengths``: the lengths, in tokens, that were checked in place of the grid (none: the grid was).
    """

    format_version: int = FORMAT_VERSION
    posexport: str
    source: SourceInfo
    task: str
    encoding: EncodingSpec | None
    #: of every layer in turn, where they differ
    encodings: list[EncodingSpec] = []
    envelope: Limits
    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    parts: list[PartSpec] = []
    precision: PrecisionName = MODEL_DTYPE.precision
    #: class of tensors -> what they are stored in, such as ``int8 per channel``; none: all as ``precision`` says
    stored: dict[str, str] = {}
    #: of a precision below float32; None: it is float32
    cost: PrecisionCost | None = None
    #: further precisions of the model in this directory (`posexport.bundle.variants`)
    variants: list[PrecisionName] = []
    target: TargetName = PORTABLE
    recipe: Recipe
    opset: int
    ir_version: int
    functions: list[str]
    lowerings: dict[str, LoweringSpec]
    #: every graph pass, in the order in which they run
    passes: dict[str, PassSpec] = {}
    files: dict[str, FileEntry]
    tools: dict[str, str]
    parity: ParitySummary | None
    proven: bool
    proven_on: list[str] = []
    #: on no provider, but as a copy that computes in float32 and rounds
    proven_in_emulation: bool = False
    checked_lengths: list[int] = []
    #: every branch of the graphs, and where the proof ran it
    coverage: list[BranchRun] = []
    created: str

    @property
    def layers(self) -> list[EncodingSpec]:
        """The encodings of its layers, one where all share it."""
        specs = self.encodings or ([] if self.encoding is None else [self.encoding])
        return [_with_key_lifetime(spec) for spec in specs]


def _with_key_lifetime(spec: EncodingSpec) -> EncodingSpec:
    """The spec with `EncodingSpec.cached_keys_until`, which the first manifests of version 3 do not have.

    LongRoPE, the only encoding that sets it, is known by its list of divisors for long rows.
    """
    until = spec.parameters.get("max_positions") if "long_factor" in spec.parameters else None
    return msgspec.structs.replace(spec, cached_keys_until=until) if isinstance(until, int) else spec


class _Version(msgspec.Struct):
    """The one field that every version has, read first so that a newer manifest is named as such."""

    format_version: int


class _Listing(_Version):
    """What every version says of files, so that a bundle of an earlier one can be replaced."""

    files: dict[str, FileEntry]


def encode(manifest: Manifest) -> bytes:
    """The manifest as JSON that people can read, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode(data: bytes) -> Manifest:
    """The manifest in ``data``; PosexportError says what is wrong with it, without naming a file."""
    if len(data) > LARGEST:
        raise PosexportError(f"it has {len(data)} bytes, a manifest has at most {LARGEST}")
    try:
        version = msgspec.json.decode(data, type=_Version).format_version
        if 1 <= version < FORMAT_VERSION:
            raise PosexportError(
                f"it has format version {version}, this posexport reads {FORMAT_VERSION}: convert the model again"
            )
        if not 1 <= version <= FORMAT_VERSION:
            raise PosexportError(
                f"it has format version {version}, this posexport reads up to {FORMAT_VERSION}: upgrade posexport"
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except RecursionError:
        raise PosexportError("it is nested too deeply for a manifest") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as err:
        raise PosexportError(f"it is not a manifest: {err}") from err
    _agree(manifest)
    return manifest


def decode_names(data: bytes) -> set[str]:
    """The files that a manifest of this or an earlier version lists; PosexportError as `decode` raises it."""
    try:
        listing = msgspec.json.decode(data, type=_Listing)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return set(decode(data).files)
    if 1 <= listing.format_version < FORMAT_VERSION and len(data) <= LARGEST and all(map(plain, listing.files)):
        return set(listing.files)
    return set(decode(data).files)


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
            source = part.feeds.get(spec.name)
            if source is None and spec.role == "cache":
                continue  # empty
            if source is None or not _takes(spec, known.get(source)):
                raise PosexportError(f"its part {part.file} takes {spec.name}, and nothing that fits feeds it")
        names = {spec.name: spec.axes for spec in part.outputs}
        # what does not change in later calls is not given again
        all_given = set(part.gives) == set(names) or (part.when == "later" and set(part.gives) < set(names))
        if not set(part.feeds) <= {spec.name for spec in part.inputs} or not all_given:
            raise PosexportError(f"its part {part.file} feeds or gives what it does not have")
        made = {whole: (_output_dtype(manifest, own), names[own]) for own, whole in part.gives.items()}
        taken = known.keys() & made.keys()
        if part.when == "later" and taken <= first:
            # in calls of its own it gives what the part for first calls gives in the others
            taken = {whole for whole in taken if known[whole] != made[whole]}
        if len(made) < len(part.gives) or taken:
            raise PosexportError(f"its part {part.file} gives something under a name that is taken")
        first |= made.keys() if part.when == "first" else set()
        known |= made
        given |= made.keys()
    if lacking := [
        spec.name for spec in manifest.outputs if spec.name not in given or known[spec.name][1] != spec.axes
    ]:
        raise PosexportError(f"none of its parts gives {lacking[0]} as it says")


def _output_dtype(manifest: Manifest, name: str) -> str:
    """The type of a part's output."""
    options = manifest.recipe.precision
    half = options.io == "half" or is_cache_output(name)
    return options.precision.dtype.name if half else MODEL_DTYPE.name


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
