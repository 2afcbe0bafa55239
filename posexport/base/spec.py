"""Specifications of a model: inputs, outputs, limits and invariants, shared by all layers. Imports no torch.

Axis names follow Hugging Face's exporters: ``batch_size``, ``sequence_length``; an integer is a fixed size. These are
the types of one file, ``posexport.json``: whoever reads it finds all of its fields here.
"""

import json
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from posexport.base.targets.dtypes import PortType
from posexport.base.text_rules import AnyResRules as AnyResRules
from posexport.base.text_rules import PageRules as PageRules
from posexport.base.text_rules import PairRules as PairRules
from posexport.base.text_rules import PictureRules as PictureRules
from posexport.base.text_rules import TextRules as TextRules
from posexport.base.text_rules import TileRules as TileRules
from posexport.base.text_rules import TokenRules as TokenRules

#: the domain of posexport's operators and functions; and the metadata key of an inlined node, with the name of the
#: innermost function that it comes from
DOMAIN, FUNCTION = "posexport", "posexport.function"
#: the file of a model that is one graph
MODEL = "model.onnx"

BATCH = "batch_size"
SEQUENCE = "sequence_length"
#: the sequence that cross attention reads, which has another length
ENCODER_SEQUENCE = "encoder_sequence_length"
#: its keys and values that are in the cache already: none or all
ENCODER_PAST = "past_encoder_sequence_length"
#: the tokens in the KV cache; these and the new tokens
PAST, TOTAL = "past_sequence_length", "total_sequence_length"
#: the slots of a static KV cache
CAPACITY = "max_sequence_length"
#: metadata of a graph that accepts a mask as wide as the static KV cache in a decode step
FIXED_SHAPE_STEPS = "posexport.fixed_shape_steps"
#: metadata of a graph with static sizes: the size of each such axis, as JSON
STATIC_SIZES = "posexport.static_sizes"
#: metadata of a graph whose LoRA adapters are inputs with defaults: their files, by the ids from 1 on, as JSON
ADAPTER_FILES = "posexport.adapter_files"
#: the height and width of an image in pixels, and its patches, or the patches of all images of a call
HEIGHT, WIDTH, PATCHES = "height", "width", "num_patches"
IMAGES = "num_images"
#: audio samples without a padding mask (with a mask they are ``sequence_length``)
SAMPLES = "num_samples"
#: words of a text, and labels that are written before it
WORDS, LABELS = "num_words", "num_labels"
#: the frames that convolutions make of ``sequence_length`` audio samples
FRAMES = "num_frames"
#: how names of axes of outputs end that hold the rows of a batch and something else: [B * T, C]
BATCH_ROWS = "batch_rows"
#: axes of outputs with one entry per token
TOKENS = (SEQUENCE, FRAMES, TOTAL, CAPACITY, ENCODER_SEQUENCE)
#: the axes of KV caches among the outputs
PRESENT = (TOTAL, CAPACITY)

#: the mask of an encoder's states, int64, which some encoders compute from a mask of their input
ENCODER_STATES, STATES_MASK = "encoder_hidden_states", "encoder_attention_mask"
#: an output of decoders: a value for each entry of the vocabulary
LOGITS = "logits"
#: an input of a decoder's graph that a call may leave out, int64: compute the logits of the last N tokens alone; 0: of
#: all. transformers.js and other exporters have this name for it
NUM_LOGITS = "num_logits_to_keep"
#: the input that marks the tokens of a prompt, which some poolings exclude
PROMPT_MASK = "prompt_mask"
#: embeddings of tokens: an output of a graph and an input of the next, which a call may give in the place of ids
EMBEDS = "inputs_embeds"
#: the input with the LoRA adapter of each row; 0: none
ADAPTERS = "adapter_ids"

Axis = str | int
#: where a model comes from; and the kinds with limits and axes that trial calls measure
SourceKind = Literal["builtin", "python", "huggingface", "transformers", "open_clip"]
BY_TRIAL: tuple[SourceKind, ...] = ("python", "transformers", "open_clip")
Role = Literal[
    "tokens",
    "numbers",
    "mask",
    "types",
    "values",
    "flags",
    "cache",
    "state",
    "positions",
    "grids",
    "blocks",
    "lengths",
    "boxes",
    "points",
    "prompts",
    "places",
    "shapes",
    "indices",
    "rows",
    "adapters",
]
#: roles of inputs that take an output of the previous call
CARRIED: tuple[Role, ...] = ("cache", "state")
#: roles of inputs about positions and padding, not about content
NO_CONTENT: tuple[Role, ...] = ("mask", "positions", "grids", "blocks", "lengths", "places", "shapes", "indices")
Beyond = Literal["error", "clip", "interpolate"]
#: ``right`` and ``left`` pad every row by the same amount, ``ragged`` rows by different amounts on either side,
#: ``ragged-right`` on the right only, ``few`` every row by one token on the right
Padding = Literal["none", "right", "left", "ragged", "ragged-right", "few"]


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A state between tokens: the state of a recurrence, or the window of a causal convolution.

    Its shape does not depend on the number of tokens. It cannot be cut back to an earlier token.

    Attributes:
        output: the output that holds the state after the call.
        reset: the value of every element before the first token.
        padding: the effect of a padded token at any place of a row.
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
            ``numbers`` (integers from 0 on that no table looks up, as time steps; proven below ``size``),
            ``mask`` (1 keeps, 0 is padding, unless ``padding`` is 1; its last axis names the sequence it masks),
            ``values`` (real numbers), ``flags`` (1 marks a token, 0 none or padding), ``cache`` (keys or values of past
            tokens), ``state`` (the state after the past tokens; see ``state``), ``positions`` (of the new tokens,
            below ``size``; -1: counted by the mask; [3, B, T] of M-RoPE),
            ``grids`` (frames, rows and columns of every image's patches, as many as `PATCHES` together; rows and
            columns are multiples of ``size``; [B, 3]: one image in each row, of one frame and at most `PATCHES`
            patches; the rest of the row is padding), ``blocks`` (1 at tokens of an image, which attend to one
            another, 0 at others; tokens of an image are in one call), ``lengths`` ([B]: the number of tokens of each
            row without padding, which is on the right), ``boxes`` (left, top, right and bottom of
            each token on its page, below ``size``), ``points`` (of an image, in pixels up to ``size``; -10: none),
            ``prompts`` (labels of points: 1 on the object, 0 on the background, -1 no point, -10 padding), ``places``
            ([B, P, 2]: column and row of each patch of an image; padding is -1 and -1, after all others), ``shapes``
            ([B, 2]: rows and columns of the patches of each image, at most ``size`` patches; the rest is padding),
            ``indices`` ([B, N]: indices of tokens in each row, at least one; -1, after all others, is no token),
            ``rows`` (indices of an axis of another input, ``rows_of``, as edges are of the nodes of a graph),
            ``adapters`` ([B]: the LoRA adapter of each row, below ``size``; 0: none).
        column_sizes: for ids [B, C] with a vocabulary per column, and places, the exclusive upper bound of each column;
            for values [B, C] that hold ids in some columns, 0 for the others.
        size: exclusive upper bound of ids; of grids and places, the patches that a token has in a row and a column.
        padding: the id at padded tokens; of a mask 0, or 1 if it marks padding, as ``src_key_padding_mask`` does.
        placeholder: the id of tokens that the model replaces by features of an image; half of an example's tokens.
        default: the value of every element if the input is absent; None: the input is required.
        state: for an input of role ``state``: its output and its first value.
        names: for an input of role ``adapters``: what the ids from 1 on are called.
        rows_of: for an input of role ``rows``: the axis whose size is the exclusive upper bound.
        least: the smallest id, where that is not 0, as of a module that looks up ``ids - 1``.
        positive: whether values are from 0 on, as counts and levels of noise; a proof draws no others.
        at_most: the largest of such values, as of pixels from 0 to 1.
    """

    name: str
    dtype: PortType
    axes: list[Axis]
    role: Role
    size: int | None = None
    column_sizes: list[int] = []
    padding: int = 0
    placeholder: int | msgspec.UnsetType = msgspec.UNSET
    default: int | None = None
    state: State | msgspec.UnsetType = msgspec.UNSET
    names: list[str] | msgspec.UnsetType = msgspec.UNSET
    rows_of: str | msgspec.UnsetType = msgspec.UNSET
    least: int | msgspec.UnsetType = msgspec.UNSET
    positive: bool | msgspec.UnsetType = msgspec.UNSET
    at_most: float | msgspec.UnsetType = msgspec.UNSET


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One output. Where an axis of `TOKENS` is among the axes, entries of padded tokens are not compared.

    Attributes:
        name: the graph's name of the output.
        axes: as for inputs.
        compared: whether the source has a right value for it. A module without a KV cache has none for keys and values
            of its graph: calls that read them show that they are right.
    """

    name: str
    axes: list[Axis]
    compared: bool = True


def compared_outputs(model: "Interface") -> list[OutputSpec]:
    """The outputs that have a right value."""
    return [spec for spec in model.outputs if spec.compared]


def masked_axis(spec: InputSpec) -> Axis | None:
    """The sequence with the padding that the input marks; None for other inputs."""
    return spec.axes[-1] if spec.role == "mask" else SEQUENCE if spec.role == "lengths" else None


def neutral(spec: InputSpec, length: int) -> int:
    """The default of every element of an input: no padding in ``length`` tokens, no token marked."""
    return {"mask": 1 - spec.padding, "positions": -1, "lengths": length}.get(spec.role, 0)


def is_cache_input(spec: InputSpec) -> bool:
    """Whether an input holds cached keys or values, of self-attention or of cross attention."""
    return spec.role == "cache" or spec.name.startswith("past_key_values")


def is_cache_output(name: str) -> bool:
    """Whether an output is what later calls take as their cache, by the ecosystem's names: ``present.N.key``.

    States, ``present_conv.N``, are none: they have another type.
    """
    return name.startswith("present") and not name.startswith("present_")


def carried(inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> list[OutputSpec]:
    """The outputs that the next call takes: caches, and states by the names that ``inputs`` give them."""
    states = {spec.state.output for spec in inputs if isinstance(spec.state, State)}
    # probabilities of attention have an axis of new tokens too
    caches = (spec.name for spec in outputs if set(PRESENT) & set(spec.axes) and SEQUENCE not in spec.axes)
    kept = states | {*caches}
    return [spec for spec in outputs if spec.name in kept]


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
        size_steps: the divisor of the size of an axis (pixels of a patch, tokens of a block).
        multiple_of: the axis that has a divisor of the size of an axis (images, as many texts to each).
        patch_size: pixels from one token to the next, in both directions.
        convolutions: kernel and stride of each convolution between audio samples and tokens.
        length_dependent: outputs of a token depend on the length of its row (dynamic NTK, LongRoPE).
        kv_cache: keys and values of past tokens are inputs, and keys and values of all tokens are outputs.
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
    multiple_of: dict[str, str] = {}
    patch_size: int = 1
    convolutions: list[tuple[int, int]] = []
    length_dependent: bool = False
    kv_cache: bool = False

    @property
    def needs_whole_row(self) -> bool:
        """Whether one row of a batch must have no padding: its row lengths are counted up to the largest of them."""
        return self.paddings == ["ragged-right"]

    @property
    def ragged(self) -> Padding | None:
        """The padding that it accepts for rows of different lengths."""
        return next((padding for padding in self.paddings if padding.startswith("ragged")), None)


class ProofPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes at which a model is traced and proven, where they differ from the default. Not part of the contract.

    ``proof_lengths`` replace the usual ones. ``proof_image_sizes``: (height, width) in pixels; none: no input is an
    image. ``proof_sizes``: sizes of all axes of a user's module except batch and sequence;
    ``elements_per_token``: elements of these axes per token. ``trace_sizes``: sizes of axes to trace at.
    """

    proof_lengths: list[int] = []
    proof_image_sizes: list[tuple[int, int]] = []
    proof_sizes: list[dict[str, int]] = []
    elements_per_token: float = 1.0
    trace_sizes: dict[str, int] = {}


class Limits(LengthContract, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contract of a bundle, with the fields of a `ProofPlan`: a msgspec Struct has one base.

    Attributes:
        proof_lengths: the lengths of the parity grid; empty: the default ones.
        proof_image_sizes: height and width in pixels at which a vision model is proven.
        proof_sizes: sizes of all axes of a user's module except batch and sequence.
        elements_per_token: elements of these axes per token.
        trace_sizes: sizes of the traced example that differ from the default.
    """

    proof_lengths: list[int] = []
    proof_image_sizes: list[tuple[int, int]] = []
    proof_sizes: list[dict[str, int]] = []
    elements_per_token: float = 1.0
    trace_sizes: dict[str, int] = {}

    @staticmethod
    def of(contract: LengthContract, proof_plan: ProofPlan) -> "Limits":
        """The record of a contract and a plan."""
        return Limits(**(msgspec.structs.asdict(contract) | msgspec.structs.asdict(proof_plan)))


class Promises(msgspec.Struct, frozen=True, kw_only=True):
    """Invariants of a model's outputs.

    Attributes:
        shift_invariant: outputs do not change when all positions move by the same amount (left padding changes
            nothing).
        padding_invariant: padding on the right does not change the outputs of other tokens.
        reads_first_token: an output without a length axis is read at token 0, so a left-padded row is answered at a
            padded token.
        positional: outputs depend on the order of tokens, by the encoding or by a causal mask or a convolution; None:
            it is not known.
        causal: outputs of a token do not depend on later tokens of ``sequence_length``.
        position_offset: unused rows at the start of a position table.
        batch_invariant: other rows of a batch do not change a row.
    """

    shift_invariant: bool = False
    padding_invariant: bool = True
    reads_first_token: bool = False
    positional: bool | None = None
    causal: bool = False
    position_offset: int = 0
    batch_invariant: bool = True


class EncodingSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A position encoding: its name and the parameters of its constructor.

    Attributes:
        name: a name of ``posexport list encodings``.
        parameters: its constructor's arguments.
        cached_keys_until: the row length beyond which cached keys must be computed again (LongRoPE changes all
            frequencies there); None or absent: never.
    """

    name: str
    parameters: dict[str, int | float | str | bool | None]
    cached_keys_until: int | None = None


def as_metadata(value: object) -> str:
    """A string as it is, JSON of anything else."""
    return value if isinstance(value, str) else json.dumps(msgspec.to_builtins(value))


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The description of a model that source, manifest and graph metadata share: their records extend this one.

    Attributes:
        task: the task, for example ``features``, ``sentence-embedding`` or ``text-generation``.
        encoding: the position encoding and its parameters; None if it is not known.
        encodings: the encoding of each layer in turn, where layers differ.
        limits: the lengths for which the model is right, and the behaviour beyond them.
        inputs: the inputs in the graph's order.
        outputs: the outputs in the graph's order.
        text_rules: from texts to vectors, for models of sentence-transformers.
        pair_rules: from pairs of texts to scores, for classifiers.
        picture_rules: pictures in prompts, for models of images and text.
    """

    task: str
    encoding: EncodingSpec | None
    encodings: list[EncodingSpec] = []
    limits: Limits
    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    text_rules: TextRules | None = None
    pair_rules: PairRules | None = None
    picture_rules: PictureRules | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of this record by name, without a subclass's fields."""
        return {name: getattr(self, name) for name in ModelSpec.__struct_fields__}

    @property
    def metadata(self) -> dict[str, str]:
        """The fields as strings for ``metadata_props``; where layers differ, the encoding of the first one."""
        rules = ("text_rules", "pair_rules", "picture_rules")
        left_out = {"encodings", *(name for name in rules if getattr(self, name) is None)}
        return {name: as_metadata(value) for name, value in self.facts.items() if name not in left_out}

    @property
    def layers(self) -> list[EncodingSpec]:
        """The encoding of each layer; one entry where all layers share it."""
        return self.encodings or ([] if self.encoding is None else [self.encoding])
