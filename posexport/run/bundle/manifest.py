"""The manifest of a bundle, ``posexport.json``: its inputs and outputs, its proof and its files.

The format, version 1. A manifest

- is UTF-8 JSON of at most 4 MB, an object with exactly the fields of `Manifest`;
- has ``format_version`` 1; a manifest of another version is rejected, a newer one with the advice to upgrade
  (docs/compatibility.md says what a version promises);
- holds nothing of the machine that wrote it but versions of tools: no path, no name of a user;
- lists every other file of the bundle, by a relative name with ``/`` between its parts, with size and sha256;
- lists ``model.onnx``, or the files of its ``parts``: graphs that run in turn, as `PartSpec` says.

Files that are not listed do not belong to the bundle and are never read.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from posexport.base.options.recipe import Recipe
from posexport.base.spec import MODEL as MODEL
from posexport.base.spec import (
    ModelSpec,
    PartSpec,
    SourceKind,
)
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.base.targets.precisions import PrecisionName
from posexport.base.targets.target import PORTABLE
from posexport.errors import PosexportError
from posexport.run.bundle.parts import check_parts
from posexport.version import VERSION

FORMAT_VERSION = 1
MANIFEST = "posexport.json"
#: every point of the proof
PARITY = "parity.json"
#: inputs and truths for a check without PyTorch (`posexport.proof.sample.writer`)
SAMPLE = "parity.safetensors"
LARGEST = 4 * 1024 * 1024

#: devices of Windows, whatever follows the first dot
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d) *(\.|$)", re.IGNORECASE)

Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, msgspec.Meta(ge=0)]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the manifest's objects; an unknown field is an error."""


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


class ReducedProof(_Strict, frozen=True, kw_only=True):
    """The proof of a large model by a reduced model: the grid's points are of that one.

    Attributes:
        layers: of the model.
        kept: layers of the reduced model.
        words: entries of its vocabulary; None: all.
        weights: stored weights of the full model that were compared with the source's.
    """

    layers: Count
    kept: Count
    words: Count | None
    weights: Count


class ParitySummary(_Strict, frozen=True, kw_only=True):
    """Result of the parity proof.

    Attributes:
        points: compared outputs and rejected inputs.
        passed: comparisons within their tolerance.
        skipped: points that were not checked, for example because they need too much memory.
        rejected: inputs beyond a limit that the graph rejected, as it must.
        worst_error: error of the comparison that came nearest to its tolerance; None: nothing was compared.
        worst_tolerance: tolerance of that comparison.
        complete: the whole grid was checked and nothing was skipped.
        longest_passed: tokens of the longest input that was compared and passed.
        reduced: how the grid's model differs from the bundle's; None: it is the bundle's.
    """

    points: Count
    passed: Count
    skipped: Count
    rejected: Count
    worst_error: float | None
    worst_tolerance: float | None
    complete: bool
    longest_passed: Count | None = None
    reduced: ReducedProof | None = None


class OutputAgreement(_Strict, frozen=True, kw_only=True):
    """Agreement of one output with the reference.

    Attributes:
        cosine: mean cosine similarity of the vectors of a token, or of a text where the output has one vector per text.
        least_cosine: smallest of these cosines.
        top_1: share of tokens with the same argmax; None for outputs other than logits.
    """

    cosine: float
    least_cosine: float
    top_1: float | None = None


class TextAgreement(_Strict, frozen=True, kw_only=True):
    """Agreement with the same graph in float32 on texts of the user (``--evaluate``).

    Attributes:
        texts: number of texts.
        sha256: hash of the file with the texts.
        fewest_tokens: length of the shortest text.
        most_tokens: length of the longest text.
        outputs: agreement of each output, by its name.
        perplexity_ratio: perplexity of a decoder relative to float32; None for other models.
    """

    texts: Count
    sha256: Sha256
    fewest_tokens: Count
    most_tokens: Count
    outputs: dict[str, OutputAgreement]
    perplexity_ratio: float | None = None


class PrecisionCost(_Strict, frozen=True, kw_only=True):
    """Measured costs of a precision below float32.

    Attributes:
        weights: bytes of the weights relative to float32.
        on_grid: agreement of a quantized graph with PyTorch in float64 on the random inputs of the proof, by
            output; ``present.*`` is all cache tensors together.
        on_texts: agreement on the texts of ``--evaluate``; None without them.
        range_on_grid: largest magnitude in a float16 graph at the points of the proof (float16 ends at 65504);
            None in other precisions.
        range_on_texts: the same on the texts of ``--evaluate``; None without them or on a GPU.
    """

    weights: float
    on_grid: dict[str, OutputAgreement] = {}
    on_texts: TextAgreement | None = None
    range_on_grid: float | None = None
    range_on_texts: float | None = None


class LoweringSpec(_Strict, frozen=True, kw_only=True):
    """The lowering of one type of function node.

    Attributes:
        lowering: the lowering that was chosen.
        nodes: how many nodes of this type the graph has.
        rejected: the other lowerings, each with the reason why it was not chosen.
    """

    lowering: str
    nodes: Count
    rejected: dict[str, str]


class PassSpec(_Strict, frozen=True, kw_only=True):
    """Result of one graph pass.

    Attributes:
        nodes: number of nodes that the pass changed.
        rejected: reasons why the pass did not run, or did not change further nodes.
        recognised: patterns that it recognised in the module, for example ALiBi with its slopes.
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
        precision_by_class: storage type of each class of tensors, for example ``int8 per channel``; empty if all
            have ``precision``.
        projections: number of linear projections of a quantized model by the type of their weights (``int4``,
            ``int8``, ``float``), over all graphs; packed projections count as one.
        cost: measured costs of a precision below float32; None for float32.
        variants: further precisions in this directory; each has a manifest, ``posexport.int8.json`` for int8.
        target: ``portable``: standard operators only; ``cpu``, ``cuda``: also operators of ONNX Runtime.
        recipe: every resolved option of the conversion; ``verify --against`` rebuilds the same definition from
            it.
        opset: version of the standard operators.
        ir_version: version of the ONNX file format.
        session_options: ONNX Runtime session options that change the values of outputs; the proof and
            `posexport.load` set them, and other clients should (in Python with ``add_session_config_entry``).
        functions: the functions of domain ``posexport`` in the graph.
        lowerings: the lowering of each type of function node, and the reasons against the others.
        passes: the result of each graph pass, in the order in which they run.
        files: every other file of the bundle.
        tokenizer: how the ids of ``tokenizer.json`` were checked: ``compared with transformers 5.24.0`` or
            ``by rules``; None if the bundle has no tokenizer.
        tools: versions of the libraries that made the bundle.
        parity: summary of the proof; None with ``--no-verify``.
        proven: the whole grid passed, every branch of the graph ran, and no point was skipped; of int8 and
            int4, the graph in float32 did, and the quantized one agrees with it by
            [figures](parity-quantized.md).
        proven_on: providers on which the graph is proven.
        proven_in_emulation: a copy that computes in float32 and rounds every output is proven, as half precision is
            on a machine without a GPU.
        emulated: operators of that copy by the way they were computed: ``kernel``, the CPU kernel in float32;
            ``function``, their ONNX function body. Outputs are rounded.
        checked_lengths: lengths in tokens that were checked instead of the grid (``--length``); empty for the
            grid.
        coverage: every branch of the graph (a side of an ``If``, the body of a ``Scan`` or ``Loop``).
        remarks: what the conversion said about the source and the proof, without folders.
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
    target: str = PORTABLE
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
    remarks: list[str] = []
    created: str


class _Version(msgspec.Struct):
    """The fields that every version of the format has; they are read first."""

    format_version: int
    posexport: str = ""


def encode(manifest: Manifest) -> bytes:
    """The manifest as indented JSON with a final newline; version and source come first."""
    fields = msgspec.to_builtins(manifest)
    first = {name: fields[name] for name in ("format_version", "posexport", "source")}
    return msgspec.json.format(msgspec.json.encode(first | fields), indent=2) + b"\n"


def decode(data: bytes) -> Manifest:
    """The manifest in ``data``; the sentence of a PosexportError names the fault and no file."""
    if len(data) > LARGEST:
        raise PosexportError(f"it has {len(data)} bytes, a manifest has at most {LARGEST}")
    try:
        written = msgspec.json.decode(data, type=_Version)
        if written.format_version != FORMAT_VERSION:
            newer = written.format_version > FORMAT_VERSION
            raise PosexportError(
                f"it has format version {written.format_version}, this posexport reads {FORMAT_VERSION}: "
                + (f"{_upgrade(written)}" if newer else "convert the model again")
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except RecursionError:
        raise PosexportError("it is nested too deeply for a manifest") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as err:
        if isinstance(err, msgspec.ValidationError) and (advice := _newer(data)):
            raise PosexportError(f"this posexport {VERSION} does not read it ({err}): {advice}") from err
        raise PosexportError(f"it is not a manifest: {err}") from err
    _agree(manifest)
    return manifest


def _upgrade(written: _Version) -> str:
    by = f", posexport {written.posexport} wrote it" if written.posexport else ""
    return f"pip install --upgrade posexport{by}"


def _newer(data: bytes) -> str | None:
    """What to do about a manifest that a newer posexport wrote; None for one that this version should read."""
    try:
        written = msgspec.json.decode(data, type=_Version)
    except msgspec.MsgspecError:
        return None
    return _upgrade(written) if _release(written.posexport) > _release(VERSION) else None


def _release(version: str) -> list[int]:
    """``0.10.2rc1`` as [0, 10, 2]."""
    return [int(number) for number in re.findall(r"\d+", re.split(r"[a-z+]", version)[0])]


def _agree(manifest: Manifest) -> None:
    """Check what the field types do not express.

    Raises:
        PosexportError: a file, an input or an output that does not fit.
    """
    for file in [graph.file for graph in manifest.parts] or [MODEL]:
        if file not in manifest.files:
            raise PosexportError(f"it does not list {file}")
    folded: dict[str, str] = {}
    for name in manifest.files:
        if not is_portable(name):
            raise PosexportError(
                f"it lists the file {name!r}, whose name must be relative and stay in the bundle, on Windows too"
            )
        # one file on Windows and macOS
        if (other := folded.setdefault(name.casefold(), name)) != name:
            raise PosexportError(f"it lists {other!r} and {name!r}, which differ in case only; rename one of them")
    for kind, specs in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
        names = [spec.name for spec in specs]
        if not names or len(set(names)) < len(names):
            raise PosexportError(f"its {kind} must be named, each once, got {names}")
    if manifest.parts:
        dtype = manifest.recipe.dtype.name
        real = dtype if manifest.recipe.io == "half" else MODEL_DTYPE.name
        check_parts(manifest.parts, manifest.inputs, manifest.outputs, carried=dtype, real=real)


def model_of(directory: Path, parts: Sequence[object]) -> Path:
    """The path of ``model.onnx``, or the directory if the bundle has ``parts``."""
    return directory if parts else directory / MODEL


def is_portable(name: str) -> bool:
    """Whether a file name is relative, valid on every system, and stays in its directory."""
    folders = name.split("/")
    return (
        name.isprintable()
        and not any(character in name for character in '\\:*?"<>|')
        and all(folder == folder.rstrip(". ") != "" and not _RESERVED.match(folder) for folder in folders)
        and name != MANIFEST
    )
