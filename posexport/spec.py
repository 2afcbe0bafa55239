"""What a model takes, gives and promises, in words that every layer shares. Imports no torch.

Axis names are those of the ecosystem: ``batch_size``, ``sequence_length``; an integer is a fixed size.
"""

import json
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from posexport.targets.dtypes import PortType
from posexport.text_rules import PairRules as PairRules
from posexport.text_rules import TextRules as TextRules
from posexport.text_rules import TokenRules as TokenRules

#: of operators and functions that posexport defines; in a graph without functions, metadata of a node with the name of
#: the innermost one that it was in
DOMAIN, FUNCTION = "posexport", "posexport.function"
#: the file of a model that is one graph
MODEL = "model.onnx"

BATCH = "batch_size"
SEQUENCE = "sequence_length"
#: The keys and values of cross attention come from a sequence with a length of its own.
ENCODER_SEQUENCE = "encoder_sequence_length"
#: of these keys and values, those that are held already: none or all
ENCODER_PAST = "past_encoder_sequence_length"
#: tokens whose keys and values are held in a cache; these and the new ones
PAST, TOTAL = "past_sequence_length", "total_sequence_length"
#: the places of a cache of fixed size
CAPACITY = "max_sequence_length"
#: an image's sides in pixels, and the tokens that a definition gives for it, or the patches of all images of a call
HEIGHT, WIDTH, PATCHES = "height", "width", "num_patches"
IMAGES = "num_images"
#: samples of sound, where no mask says which of them are padding (else they are ``sequence_length``)
SAMPLES = "num_samples"
#: what is left of ``sequence_length`` audio samples after the convolutions
FRAMES = "num_frames"
#: the axes of outputs that hold a token each
TOKENS = (SEQUENCE, FRAMES, TOTAL, CAPACITY, ENCODER_SEQUENCE)
#: of those, the axes of caches that a call gives
PRESENT = (TOTAL, CAPACITY)

#: the input that marks the tokens of a prompt, of models whose pooling leaves them out
PROMPT_MASK = "prompt_mask"

Axis = str | int
#: where a model comes from; of some, posexport knows what it found by running them
SourceKind = Literal["builtin", "python", "huggingface", "transformers"]
BY_TRIAL: tuple[SourceKind, ...] = ("python", "transformers")
Role = Literal[
    "tokens", "mask", "types", "values", "flags", "cache", "state", "positions", "grids", "blocks", "lengths"
]
#: of inputs that a call takes from the call before
CARRIED: tuple[Role, ...] = ("cache", "state")
#: inputs of these roles say something of positions and padding alone
NO_CONTENT: tuple[Role, ...] = ("mask", "positions", "grids", "blocks", "lengths")
Beyond = Literal["error", "clip", "interpolate"]
#: ``right`` and ``left`` pad every row by the same amount, ``ragged`` rows by different amounts on either side,
#: ``ragged-right`` on the right only, ``few`` every row by one token on the right
Padding = Literal["none", "right", "left", "ragged", "ragged-right", "few"]


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client must know of a state between tokens (of a recurrence, or the window of a convolution).

    Its shape is that of the input, of one size whatever was read. It cannot be cut back to an earlier token.

    Attributes:
        output: the output that holds the state after the call.
        reset: the value of every element before the first token.
        padding: what a padded token does to it, wherever in a row.
    """

    output: str
    reset: float = 0.0
    padding: Literal["unchanged"] = "unchanged"


class InputSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input.

    Attributes:
        name: the graph's name of the input.
        dtype: element type.
        axes: a name for each dynamic axis, a number for each fixed one.
        role: what the values mean: ``tokens`` (ids below ``size``), ``types`` (segment ids below ``size``),
            ``mask`` (1 keeps, 0 is padding, unless ``padding`` is 1; its last axis names the sequence it masks),
            ``values`` (real numbers), ``flags`` (1 marks a token, 0 none or padding), ``cache`` (keys or values of past
            tokens), ``state`` (a state after the past tokens: ``state`` says more), ``positions`` (of the new tokens,
            below ``size``; -1: counted by the mask; [3, B, T] of M-RoPE),
            ``grids`` (frames, rows and columns of every image's patches, as many as `PATCHES` together; rows and
            columns are multiples of ``size``), ``blocks`` (1 at tokens of an image, which attend to one another, 0
            at others; tokens of an image come in one call), ``lengths`` ([B]: how many tokens of each row's
            ``sequence_length`` are real, padding being on the right).
        column_sizes: of ids [B, C] whose columns are numbered each by itself, the bound of each column.
        size: exclusive upper bound of ids; of grids, the patches that a token has in a row and a column.
        padding: the id at padded tokens; of a mask 0, or 1 where it marks padding, as ``src_key_padding_mask``.
        default: the value of every element where the input is left out; None: it must be given.
        state: of an input of role ``state``, what clients must know.
    """

    name: str
    dtype: PortType
    axes: list[Axis]
    role: Role
    size: int | None = None
    column_sizes: list[int] = []
    padding: int = 0
    default: int | None = None
    state: State | msgspec.UnsetType = msgspec.UNSET


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One output. Where an axis of `TOKENS` is among the axes, entries of padded tokens are not compared.

    Attributes:
        name: the graph's name of the output.
        axes: as for inputs.
    """

    name: str
    axes: list[Axis]


def masked_axis(spec: InputSpec) -> Axis | None:
    """The sequence of which an input says which tokens are real; None: of none."""
    return spec.axes[-1] if spec.role == "mask" else SEQUENCE if spec.role == "lengths" else None


def neutral(spec: InputSpec, length: int) -> int:
    """What every element of an input holds where it says nothing: of ``length`` tokens all are real, none is marked."""
    return {"mask": 1 - spec.padding, "positions": -1, "lengths": length}.get(spec.role, 0)


def is_cache_input(spec: InputSpec) -> bool:
    """Whether an input holds keys or values; those of cross attention are values of the encoder's to a decoder."""
    return spec.role == "cache" or spec.name.startswith("past_key_values")


def is_cache_output(name: str) -> bool:
    """Whether an output is what later calls take as their cache, by the ecosystem's names: ``present.N.key``.

    States, ``present_conv.N``, are none: they have another type.
    """
    return name.startswith("present") and not name.startswith("present_")


def carried(inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> list[OutputSpec]:
    """The outputs that the next call takes: caches, and states by the names that ``inputs`` give them."""
    states = {spec.state.output for spec in inputs if isinstance(spec.state, State)}
    return [spec for spec in outputs if set(PRESENT) & set(spec.axes) or spec.name in states]


class Interface(Protocol):
    """Anything with named inputs and outputs: a source, a definition, a part, a stored sample."""

    @property
    def inputs(self) -> Sequence[InputSpec]: ...

    @property
    def outputs(self) -> Sequence[OutputSpec]: ...


class PartSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several graphs that make up a model, which run in turn. One file may be two parts.

    Attributes:
        file: the graph's file.
        inputs: inputs of this graph.
        outputs: outputs of this graph.
        input_names: where each of its inputs comes from: an input of the whole model, or an output of an earlier
            graph. A ``cache`` input that is not listed is empty.
        output_names: what each of its outputs is called in the whole model.
        when: ``always``; ``first``, in calls without past tokens; ``later``, in calls with some. Before a
            ``later`` part the ``first`` one runs on one token alone, for what only it gives and what no token
            changes (keys and values of an encoder's states).
    """

    file: str
    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    input_names: dict[str, str]
    output_names: dict[str, str]
    when: Literal["always", "first", "later"] = "always"


class LengthContract(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lengths a model is right for.

    Attributes:
        min_length: tokens of the shortest input.
        trained_length: tokens of the position table; None: it has none.
        max_length: tokens of the longest input; the graph rejects longer ones; None: any length.
        beyond: what was chosen for inputs longer than the position table.
        boundaries: lengths at which the encoding's formula changes (a clipping distance, the end of a table).
        limited_axes: the axes to which the maximum applies.
        paddings: the kinds of padding that the model accepts.
        min_sizes: the smallest size of other axes than ``sequence_length``.
        max_sizes: the largest size of axes to which ``max_length`` does not apply.
        size_steps: what the size of an axis must be a multiple of (pixels of a patch, tokens of a block).
        patch_size: pixels from one token to the next, in both directions.
        convolutions: kernel and stride of each convolution between audio samples and tokens.
        length_dependent: what a token gets depends on the length of its row in the call (dynamic NTK,
            LongRoPE).
        kv_cache: it has a KV cache: keys and values of past tokens are inputs, those of all tokens outputs.
    """

    min_length: int = 1
    trained_length: int | None = None
    max_length: int | None = None
    beyond: Beyond = "error"
    boundaries: list[int] = []
    limited_axes: list[str] = msgspec.field(default_factory=lambda: [SEQUENCE])
    paddings: list[Padding] = msgspec.field(default_factory=lambda: ["right", "left", "ragged"])
    min_sizes: dict[str, int] = {}
    max_sizes: dict[str, int] = {}
    size_steps: dict[str, int] = {}
    patch_size: int = 1
    convolutions: list[tuple[int, int]] = []
    length_dependent: bool = False
    kv_cache: bool = False

    @property
    def ragged(self) -> Padding | None:
        """The padding that it accepts for rows of different lengths."""
        return next((padding for padding in self.paddings if padding.startswith("ragged")), None)


class ProofPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes at which a model is traced and proven, where the usual ones do not fit. It promises nothing to users.

    ``proof_lengths`` replace the usual ones. ``proof_image_sizes``: (height, width) in pixels; none: no input is an
    image. ``proof_sizes``: sizes of all axes of a user's module that are neither batch nor sequence;
    ``elements_per_token``: how many places of these axes make a token. ``trace_sizes``: sizes of axes to trace at.
    """

    proof_lengths: list[int] = []
    proof_image_sizes: list[tuple[int, int]] = []
    proof_sizes: list[dict[str, int]] = []
    elements_per_token: float = 1.0
    trace_sizes: dict[str, int] = {}


class Limits(LengthContract, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contract as a bundle records it, beside the sizes of the `ProofPlan` that it was proven with.

    Attributes:
        proof_lengths: the lengths of the parity grid; empty: the default ones.
        proof_image_sizes: height and width in pixels at which a vision model is proven.
        proof_sizes: sizes at which a module of the user's is proven, of its axes beside batch and sequence.
        elements_per_token: how many places of these axes make a token.
        trace_sizes: sizes of the example with which the model was traced, where the usual ones do not fit.
    """

    proof_lengths: list[int] = []
    proof_image_sizes: list[tuple[int, int]] = []
    proof_sizes: list[dict[str, int]] = []
    elements_per_token: float = 1.0
    trace_sizes: dict[str, int] = {}

    @staticmethod
    def of(contract: LengthContract, plan: ProofPlan) -> "Limits":
        """The record of a contract and a plan."""
        return Limits(**(msgspec.structs.asdict(contract) | msgspec.structs.asdict(plan)))


class Promises(msgspec.Struct, frozen=True, kw_only=True):
    """What a model promises of its outputs, beside the lengths.

    Attributes:
        shift_invariant: outputs do not change when all positions move by the same amount (left padding changes
            nothing).
        padding_invariant: padding on the right does not change what is not padding.
        reads_first_token: an output without a length axis is read at token 0, so a left-padded row is answered at a
            padded token.
        positional: outputs depend on the order of tokens, by the encoding or by a causal mask or a convolution; None:
            it is not known.
        causal: what it computes for a token of ``sequence_length`` does not depend on the ones after it.
        position_offset: rows at the start of a position table that no real token uses.
    """

    shift_invariant: bool = False
    padding_invariant: bool = True
    reads_first_token: bool = False
    positional: bool | None = None
    causal: bool = False
    position_offset: int = 0


class EncodingSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which encoding a model uses, with the parameters its constructor was given.

    Attributes:
        name: a name of ``posexport list encodings``.
        parameters: its constructor's arguments.
        cached_keys_until: row length beyond which cached keys of shorter calls must be computed again (LongRoPE
            changes all frequencies there); None or left out: never.
    """

    name: str
    parameters: dict[str, int | float | str | bool | None]
    cached_keys_until: int | None = None


def as_metadata(value: object) -> str:
    """A string as it is, JSON of anything else."""
    return value if isinstance(value, str) else json.dumps(msgspec.to_builtins(value))


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model is: the facts that a source knows, the manifest records and the graph's metadata repeats.

    The records that hold them extend this one, so a further fact is a field here.

    Attributes:
        task: what the model is for, such as ``features``, ``sentence-embedding`` or ``text-generation``.
        encoding: the position encoding and its parameters; None for a module without one that posexport knows.
        encodings: the encoding of each layer in turn, where layers differ.
        limits: the lengths for which the model is right, and what happens beyond them.
        inputs: the inputs in the graph's order.
        outputs: the outputs in the graph's order.
        text_rules: how texts become vectors, of a model of sentence-transformers.
        pair_rules: how pairs of texts become scores, of a classifier.
    """

    task: str
    encoding: EncodingSpec | None
    encodings: list[EncodingSpec] = []
    limits: Limits
    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    text_rules: TextRules | None = None
    pair_rules: PairRules | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """These by name, without what a record that extends this one has beside them."""
        return {name: getattr(self, name) for name in ModelSpec.__struct_fields__}

    @property
    def metadata(self) -> dict[str, str]:
        """The facts as a graph's ``metadata_props`` have them; of layers that differ, the first one's encoding."""
        rules = ("text_rules", "pair_rules")
        left_out = {"encodings", *(name for name in rules if getattr(self, name) is None)}
        return {name: as_metadata(value) for name, value in self.facts.items() if name not in left_out}

    @property
    def layers(self) -> list[EncodingSpec]:
        """The encodings of its layers, one where all share it."""
        return self.encodings or ([] if self.encoding is None else [self.encoding])
