"""Tables of the bundle format for docs/bundle-format.md: names and types from the code, meanings from here."""

import types
import typing
from collections.abc import Callable, Mapping

import msgspec

from posexport.bundle import manifest as bundle
from posexport.parity.report import points as records
from posexport.recipe import Recipe
from posexport.spec import EncodingSpec, InputSpec, Limits, OutputSpec, PartSpec
from posexport.targets.precision_options import PrecisionOptions

#: by type and field as the code has them; a field without a meaning is an error, and so is a meaning without a field
MEANINGS: Mapping[type[msgspec.Struct], Mapping[str, str]] = {
    bundle.Manifest: {
        "format_version": "version of this format; a reader rejects versions that it does not know",
        "posexport": "the version of posexport that wrote the bundle",
        "source": "what was converted",
        "task": "what the model is for, such as `features`, `sentence-embedding` or `text-generation`",
        "encoding": "the position encoding and its parameters; null for a module without one that posexport knows",
        "encodings": "the encoding of each layer in turn, where layers differ",
        "envelope": "the lengths for which the model is right, and what happens beyond them",
        "inputs": "the inputs in the graph's order",
        "outputs": "the outputs in the graph's order",
        "parts": "the graphs of a model that has several (encoder and decoder), in the order in which they run",
        "precision": "precision of weights and activations",
        "stored": "class of tensors and what they are stored in; empty: all as `precision` says",
        "cost": "what a precision below float32 was measured to cost; null for float32",
        "variants": "further precisions in this directory, each with a manifest such as `posexport.int8.json`",
        "target": "`portable`: standard operators only; `cpu`, `cuda`: also ONNX Runtime's own operators",
        "recipe": "every resolved option of the conversion; `verify --against` rebuilds the same definition from it",
        "opset": "version of the standard operators",
        "ir_version": "version of the ONNX file format",
        "functions": "the functions of domain `posexport` in the graph",
        "lowerings": "for each type of function node: which lowering was chosen, and why the others were not",
        "passes": "for each graph pass, in the order in which they run: how many nodes it changed, and why not others",
        "files": "every other file of the bundle",
        "tools": "versions of the libraries that made the bundle",
        "parity": "summary of the proof; null with `--no-verify`",
        "proven": "the whole grid passed, every branch of the graph ran, and no point was skipped; of int8 and int4, "
        "the graph in float32 did, and the quantized one agrees with it by [figures](parity.md#quantized-graphs)",
        "proven_on": "the providers on which that holds",
        "proven_in_emulation": "that holds for a copy which computes in float32 and rounds, as for half precision on "
        "a machine without a GPU",
        "checked_lengths": "the lengths in tokens that were checked instead of the grid (`--length`); empty: the grid",
        "coverage": "every branch of the graph (a side of an `If`, the body of a `Scan` or `Loop`)",
        "created": "ISO 8601 time",
    },
    bundle.SourceInfo: {
        "name": "name of the source, without folders",
        "kind": "where the source came from",
        "sha256": "hash of everything that determines the weights",
        "revision": "the commit on the Hugging Face Hub; null for other sources",
    },
    bundle.FileEntry: {"size": "bytes", "sha256": "hash of the file"},
    bundle.LoweringSpec: {
        "lowering": "the lowering that was chosen",
        "nodes": "how many nodes of this type the graph has",
        "refused": "every other lowering, with the reason why it was not chosen",
    },
    bundle.PassSpec: {
        "nodes": "how many nodes the pass changed",
        "refused": "why the pass did not run, or why it left other nodes as they are",
    },
    bundle.ParitySummary: {
        "points": "compared outputs and rejected inputs",
        "passed": "comparisons within their tolerance",
        "skipped": "points that were not checked, such as points too large for the machine's memory",
        "refused": "inputs beyond a limit that the graph rejected, as it must",
        "worst_error": "error of the comparison that came nearest to its tolerance; null: nothing was compared",
        "worst_tolerance": "tolerance of that comparison",
        "complete": "the whole grid was checked and nothing was skipped",
        "longest": "tokens of the longest input that was compared and passed",
    },
    bundle.PrecisionCost: {
        "weights": "bytes of the weights, relative to those of the same graph in float32",
        "on_grid": "by output, agreement of a quantized graph with PyTorch in float64 on the random inputs of the "
        "proof; `present.*` are all cache tensors",
        "on_texts": "agreement on the user's own texts (`--texts`); null where none were given",
        "range_on_grid": "largest magnitude that a graph in float16 computes at the points of the proof (its largest "
        "number is 65504); null in other precisions",
        "range_on_texts": "the same on the user's own texts; null where none were given, or a GPU computed",
    },
    bundle.TextAgreement: {
        "texts": "how many were compared",
        "sha256": "hash of their file",
        "fewest_tokens": "tokens of the shortest",
        "most_tokens": "tokens of the longest",
        "outputs": "by output, agreement with the same graph in float32",
        "perplexity_ratio": "of a decoder with logits: perplexity relative to float32; null for other models",
    },
    bundle.OutputAgreement: {
        "cosine": "mean cosine of a token's vector; of an output with one vector a text, of a text's",
        "least_cosine": "the smallest",
        "top_1": "the part of the tokens whose largest element is the same; null for what is no logits",
    },
    bundle.BranchRun: {
        "branch": "name of the branch",
        "reached": "the first grid point that ran it; null: none did",
        "note": "why no point ran it",
    },
    Recipe: {
        "task": "the task, also where it was taken from the source",
        "settings": "the `--set` pairs of a built-in model",
        "as_transformers": "transformers' code was followed where it differs from the paper",
        "cache": "how a decoder keeps keys and values of past tokens",
        "rotation": "when a decoder applies RoPE to keys: before they are cached, or each time they are read",
        "max_length": "the limit in tokens that was asked for; null: the source's own",
        "beyond": "what was chosen for inputs longer than the position table",
        "target": "as in the manifest",
        "lowering": "the lowering that was asked for, or `auto`",
        "opset": "as in the manifest",
        "inline": "the graph was written without functions",
        "layout": "which files were written beside the model",
        "precision": "the options about precision",
    },
    PrecisionOptions: {
        "name": "as `precision` in the manifest",
        "io": "element type of real-valued inputs and outputs: float32, or the model's own",
        "keep_float": "patterns of weights that were not quantized",
        "weight_only": "int8 weights, activations in floating point",
        "block_size": "weights that share a scale, where only weights are quantized",
        "quantizer": "how weights were rounded, where only weights are quantized",
        "calibration": "sha256 of the texts that static scales or GPTQ were measured on; null: no texts",
    },
    Limits: {
        "minimum": "tokens of the shortest input",
        "trained": "tokens of the position table; null: it has none",
        "limit": "tokens of the longest input; the graph rejects longer ones; null: any length",
        "beyond": "what was chosen for inputs longer than the position table",
        "boundaries": "lengths at which the encoding's formula changes (a clipping distance, the end of a table)",
        "limited_axes": "the axes to which the maximum applies",
        "lengths": "the lengths of the parity grid; empty: the default ones",
        "paddings": "the kinds of padding that the model accepts",
        "images": "height and width in pixels at which a vision model is proven",
        "smallest": "the smallest size of other axes than `sequence_length`",
        "patch": "pixels from one token to the next, in both directions",
        "convolutions": "kernel and stride of each convolution between audio samples and tokens",
        "length_dependent": "what a token gets depends on the length of its row in the call (dynamic NTK, LongRoPE)",
        "cached": "the model has a KV cache",
        "traced": "sizes of the example with which the model was traced, where the usual ones do not fit",
    },
    EncodingSpec: {
        "name": "a name of `posexport list encodings`",
        "parameters": "its constructor's arguments",
        "cached_keys_until": "row length beyond which cached keys must be computed again (LongRoPE); left out: never",
    },
    InputSpec: {
        "name": "the graph's name of the input",
        "dtype": "element type",
        "axes": "a name for each dynamic axis, a number for each fixed one",
        "role": "what the values mean: token ids, mask, segment ids, real values, flags, KV cache or positions",
        "size": "ids must be below this",
        "padding": "the id at padded tokens",
        "default": "the value of every element where the input is left out; null: it must be given",
    },
    OutputSpec: {"name": "the graph's name of the output", "axes": "as for inputs"},
    PartSpec: {
        "file": "the graph's file",
        "inputs": "inputs of this graph",
        "outputs": "outputs of this graph",
        "feeds": "where each of its inputs comes from: an input of the whole model, or an output of an earlier graph",
        "gives": "what each of its outputs is called in the whole model",
        "when": "in every call, only in calls without past tokens, or only in calls with some",
    },
    records.Point: {
        "batch": "rows",
        "length": "tokens of a row, cached ones included",
        "past": "tokens in the cache before the call",
        "memory": "tokens of the encoder, for cross attention",
        "image": "height and width in pixels",
        "calls": "new tokens of each call, where the row was read in several (prefill, chunks, decode steps)",
        "numbered": "`position_ids` were fed, instead of counted from the mask",
        "padding": "where rows were padded",
        "provider": "where the graph ran",
        "precision": "precision of the run",
        "output": "name of the compared output",
        "error": "max |y - y64| / max |y64| over what is not padding; null: no number describes it, see the note",
        "baseline_error": "PyTorch's own error at this point, in the same precision",
        "worst_baseline_error": "PyTorch's largest error at this length, of which the tolerance is made",
        "tolerance": "the largest error that passes",
        "cosine": "of a quantized graph: mean cosine of a token's vector with the reference's",
        "least_cosine": "the smallest of them",
        "top_1": "the part of the tokens whose largest logit is the reference's; null for what is no logits",
        "verdict": "pass, fail, skipped, or rejected by the graph's length guard (which passes where it is due)",
        "note": "reason, where there is one",
    },
}


def _type(annotation: object) -> str:
    """The JSON type in words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is typing.Literal:
        return " or ".join(f'"{value}"' for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(each) for each in arguments))
    if origin in (list, tuple):
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"object of {_type(arguments[1])}"
    names = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
    if annotation in names:
        return names[annotation]  # type: ignore[index]
    return TITLES.get(annotation, "object")  # type: ignore[call-overload,no-any-return]


#: headings of the page: type, title
TITLES: Mapping[type[msgspec.Struct], str] = {
    bundle.Manifest: "manifest",
    Recipe: "recipe",
    PrecisionOptions: "precision options",
    Limits: "limits",
    EncodingSpec: "encoding",
    InputSpec: "input",
    OutputSpec: "output",
    PartSpec: "part",
    bundle.SourceInfo: "source",
    bundle.FileEntry: "file",
    bundle.LoweringSpec: "lowering",
    bundle.PassSpec: "graph pass",
    bundle.ParitySummary: "parity summary",
    bundle.PrecisionCost: "precision cost",
    bundle.TextAgreement: "agreement on texts",
    bundle.OutputAgreement: "agreement of an output",
    bundle.BranchRun: "branch",
    records.Point: "point",
}


def _table(struct: type[msgspec.Struct]) -> str:
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    if fields.keys() != MEANINGS[struct].keys():
        differ = sorted(fields.keys() ^ MEANINGS[struct].keys())
        raise ValueError(f"ci/docs_manifest.py: {struct.__name__} and its meanings differ in {', '.join(differ)}")
    lines = ["| field | type | meaning |", "|---|---|---|"]
    for name, meaning in MEANINGS[struct].items():
        field, escaped = fields[name], meaning.replace("|", "\\|")
        lines.append(f"| `{field.encode_name}` | {_type(field.type)} | {escaped} |")
    return "\n".join(lines)


def manifest() -> str:
    """``posexport.json``, object by object."""
    shown = [struct for struct in TITLES if struct is not records.Point]
    return "\n\n".join(f"### {TITLES[struct].capitalize()}\n\n{_table(struct)}" for struct in shown)


def points() -> str:
    """A point of ``parity.json``."""
    return _table(records.Point)


BLOCKS: dict[str, Callable[[], str]] = {"manifest": manifest, "points": points}
