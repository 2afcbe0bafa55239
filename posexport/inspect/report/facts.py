"""A bundle in words: sizes, inputs and outputs, precision, commands. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from posexport.base.spec import CARRIED, Axis, EncodingSpec, InputSpec, is_cache_output, masked_axis
from posexport.base.system.files import size_text
from posexport.run.bundle.manifest import MODEL, Manifest, OutputAgreement
from posexport.run.pipelines.registry import kind_of, tasks_of

Pairs = list[tuple[str, str]]


def meaning(manifest: Manifest) -> str:
    """The verdict for readers who know no tolerances."""
    longest = manifest.parity.longest_passed if manifest.parity else None
    if not manifest.proven or longest is None:
        return ""
    what = "patches" if manifest.limits.proof_image_sizes else "tokens"
    sizes = f"at every length that was checked, up to {longest} {what}"
    if manifest.projections:
        return (
            f"This file computes its model with quantized weights exactly, {sizes}. What the quantization changes is "
            "under Precision."
        )
    how = ", computed with every result rounded as a GPU would" if manifest.proven_in_emulation else ""
    return f"This file computes what the PyTorch model computes, as exactly as PyTorch itself, {sizes}{how}."


def facts(manifest: Manifest) -> Pairs:
    """Source, task, encoding, precision, size and limit of a bundle, with their names."""
    limits = manifest.limits
    total = sum(entry.size for entry in manifest.files.values())
    longest = "any" if limits.max_length is None else f"{limits.max_length} tokens"
    if limits.proof_image_sizes:
        longest = "images of any size" if limits.max_length is None else f"{limits.max_length} patches"
    revision = f" at {manifest.source.revision[:12]}" if manifest.source.revision else ""
    pairs = [
        ("Source", f"{manifest.source.name}{revision} ({manifest.source.kind})"),
        ("Task", manifest.task),
        ("Positions", " and ".join(dict.fromkeys(spec.name for spec in manifest.layers)) or "not known"),
        ("Precision", ", ".join([manifest.precision, *manifest.variants])),
        ("Target", manifest.target),
        ("Opset", str(manifest.opset)),
        ("Size", size_text(total)),
        ("Longest input", longest),
    ]
    if manifest.limits.kv_cache:
        pairs.append(("KV cache", "yes"))
    return pairs


def limits(manifest: Manifest) -> list[str]:
    """The limits of sizes, as sentences."""
    known = manifest.limits
    sentences = []
    if known.max_length is not None:
        axes = ", ".join(known.limited_axes)
        sentences.append(f"{axes}: at most {known.max_length}; the graph refuses longer inputs.")
    if known.min_length > 1:
        sentences.append(f"At least {known.min_length} tokens.")
    sentences += [f"{axis}: at least {size}." for axis, size in known.min_sizes.items()]
    sentences += [f"{axis}: at most {size}." for axis, size in known.max_sizes.items()]
    sentences += [f"{axis}: a multiple of {size}." for axis, size in known.size_steps.items() if size > 1]
    if known.length_dependent:
        sentences.append("Outputs of a token depend on the length of its row.")
    if known.trained_length is not None and known.trained_length != known.max_length:
        sentences.append(f"Trained for {known.trained_length} tokens.")
    if any(masked_axis(spec) is not None for spec in manifest.inputs):
        paddings = ", ".join(known.paddings)
        sentences.append(f"Padding that it accepts: {paddings}." if paddings else "It accepts no padding.")
    return sentences


def tensors(manifest: Manifest) -> list[tuple[str, str, str, str]]:
    """Inputs and outputs: direction, name, axes, meaning. Tensors of a KV cache are one row each way."""
    rows: list[tuple[str, str, str, str]] = []
    carried = [spec for spec in manifest.inputs if spec.role in CARRIED]
    rows += [
        ("in", spec.name, f"{spec.dtype} {_axes(spec.axes)}", _meaning(spec))
        for spec in manifest.inputs
        if spec not in carried
    ]
    if carried:
        first = carried[0]
        rows.append(("in", f"{first.name} ...", f"{first.dtype} {_axes(first.axes)}", f"{len(carried)} cached tensors"))
    cache = [spec for spec in manifest.outputs if is_cache_output(spec.name)]
    rows += [("out", spec.name, _axes(spec.axes), "") for spec in manifest.outputs if spec not in cache]
    if cache:
        rows.append(("out", f"{cache[0].name} ...", _axes(cache[0].axes), f"{len(cache)} cached tensors"))
    return rows


def _axes(axes: Sequence[Axis]) -> str:
    return f"[{', '.join(str(axis) for axis in axes)}]"


def _meaning(spec: InputSpec) -> str:
    words: list[str] = [spec.role]
    if spec.size is not None:
        words.append(f"below {spec.size}")
    if isinstance(spec.rows_of, str):
        words.append(f"of {spec.rows_of}")
    if spec.default is not None:
        words.append("may be left out")
    return ", ".join(words)


@dataclass(frozen=True)
class Layers:
    """Neighbouring layers with the same encoding."""

    layers: str
    name: str
    settings: str


def layers(manifest: Manifest) -> list[Layers]:
    """The encoding of each layer; one entry where all layers share it."""
    if not manifest.encodings:
        return [Layers("all layers", spec.name, _settings(spec)) for spec in manifest.layers]
    grouped = []
    for (name, settings), several in groupby(
        enumerate(manifest.encodings), key=lambda item: (item[1].name, _settings(item[1]))
    ):
        numbers = [number for number, _ in several]
        span = f"layer {numbers[0]}" if len(numbers) == 1 else f"layers {numbers[0]} to {numbers[-1]}"
        grouped.append(Layers(span, name, settings))
    return grouped


def _settings(spec: EncodingSpec) -> str:
    """Settings that are set; a long list of numbers by its length."""
    words = []
    for name, value in spec.parameters.items():
        if isinstance(value, str) and "," in value:
            words.append(f"{name} of {value.count(',') + 1} numbers")
        elif value is not None:
            words.append(f"{name} {value}")
    return ", ".join(words)


def agreements(manifest: Manifest) -> list[tuple[str, str, str, str]]:
    """What the precision costs, by output: where, output, mean and least cosine with the same token agreement."""
    cost = manifest.cost
    if cost is None:
        return []
    rows = [_agreement("random inputs", name, one) for name, one in cost.on_grid.items()]
    if cost.on_texts is not None:
        where = f"{cost.on_texts.texts} texts"
        rows += [_agreement(where, name, one) for name, one in cost.on_texts.outputs.items()]
    return rows


def _agreement(where: str, output: str, one: OutputAgreement) -> tuple[str, str, str, str]:
    cosines = f"{one.cosine:.5f} (least {one.least_cosine:.5f})"
    return where, output, cosines, "" if one.top_1 is None else f"{100 * one.top_1:.1f}%"


def commands(manifest: Manifest, name: str) -> Pairs:
    """What to type, with what it does; ``name``: of the bundle's directory."""
    kind, has_texts = kind_of(manifest), "tokenizer.json" in manifest.files
    run = {"images": "--image photo.jpg", "audio": "--audio speech.wav"}.get(kind, "")
    if not run:
        run = '--text "Some words."' if has_texts else "--inputs arrays.npz"
    named = manifest.source.kind == "builtin" or manifest.source.revision is not None
    source = manifest.source.name if named else "SOURCE"
    pairs = [("Run it", f"posexport run {name} {run}")]
    if manifest.limits.kv_cache and has_texts and kind == "text":
        pairs.append(("Generate", f'posexport generate {name} --prompt "Once upon a time"'))
    python = f'import posexport\nsession = posexport.load("{name}")'
    pairs.append(("In Python, without PyTorch", python))
    if tasks_of(manifest) and (has_texts or kind != "text"):
        pairs.append(("As transformers' pipeline", f'posexport.pipeline("{name}")(inputs)'))
    graphs = [graph.file for graph in manifest.parts] or [MODEL]
    pairs += [
        ("Without posexport", f'onnxruntime.InferenceSession("{name}/{graphs[0]}")'),
        ("Check it on another machine", f"posexport verify {name}"),
        ("Prove it again", f"posexport verify {name} --against {source}"),
        ("See where time goes", f"posexport explain {name}"),
        ("Serve it", f"posexport deploy {name} --to mlserver -o {name}-mlserver"),
    ]
    return pairs
