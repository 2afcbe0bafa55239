"""The position encodings of a checkpoint or bundle: learned tables, biases and rotations of all layers, as stored."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import nn

from posexport.base.spec import MODEL, EncodingSpec
from posexport.encodings.encoding import ENCODINGS, Encoding, Value
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import MANIFEST, Manifest
from posexport.run.bundle.read import read
from posexport.sources.encoding_alone import EncodingAlone
from posexport.sources.load_options import LoadOptions
from posexport.sources.prepare import prepare
from posexport.study.plots import of_graph
from posexport.study.plots.choose import SIZES, choose, settings_in_words
from posexport.study.plots.distance_vectors import met_vectors
from posexport.study.plots.panels import Drawing, Group, Subject

#: positions that are shown where nothing says how many matter, and the most that are shown unasked
SHOWN, MOST = 64, 512


@dataclass(frozen=True)
class Place:
    """An encoding in a model: the part of the model (encoder, decoder, or none), and its layer in words."""

    part: str
    layer: str
    encoding: Encoding


def pictures(directory: Path, *, length: int | None = None, allow_pickle: bool = False) -> Drawing:
    """The drawing of the checkpoint or bundle in ``directory``.

    Raises:
        PosexportError: it cannot be read, it is a bundle without its tables in the graph, or nothing in it depends
            on positions.
    """
    # the encodings, from a bundle's graph or from a checkpoint's definition
    if (directory / MANIFEST).is_file():
        manifest = read(directory)
        if not manifest.layers:
            return of_graph.pictures(directory, manifest, length)
        encodings = encodings_of(directory, manifest)
        places = list(_places(encodings))
        label, overhead = manifest.source.name, 0
    else:
        source = prepare(str(directory), LoadOptions(allow_pickle=allow_pickle))
        places = list(found_in(source.module))
        label, overhead = source.public_name, source.promises.position_offset
    name = directory.resolve().name
    # layers with the same settings share a picture
    by_settings: dict[tuple[str, str, str], list[Place]] = {}
    for place in places:
        key = (place.part, place.encoding.name, str(place.encoding.parameters_given))
        by_settings.setdefault(key, []).append(place)
    grouped = _by_layers(list(by_settings.values()))
    groups: list[Group] = []
    for of_kind in grouped:
        subject = _subject(of_kind, length, overhead)
        drawn = choose(subject)
        heading = _heading(of_kind, subject) if len(grouped) > 1 else ""
        groups += [replace(drawn[0], heading=_joined(heading, drawn[0].heading)), *drawn[1:]]
    if not groups:
        raise PosexportError(f"{directory} has no position encoding to show: nothing in it depends on positions")
    kinds = list(dict.fromkeys(place.encoding.name for place in places))
    first = places[0].encoding
    words = f" ({settings_in_words(first, SIZES)})" if len(by_settings) == 1 and first.parameters_given else ""
    title = f"{name}: {' and '.join(kinds)}{words}"
    summary = " ".join(dict.fromkeys(ENCODINGS[kind].summary.replace("``", "") for kind in kinds[:2]))
    sources = "; ".join(dict.fromkeys(ENCODINGS[kind].source for kind in kinds))
    return Drawing(groups, title, summary, f"Weights: {name} ({label}). Sources: {sources}")


def found_in(model: nn.Module) -> Iterator[Place]:
    """Every registered encoding in ``model``, once, in the order of the layers; those that rotate and add are two."""
    modules = {name: m for name, m in model.named_modules() if isinstance(m, Encoding) and m.name in ENCODINGS}
    return _places(modules)


def _places(modules: Mapping[str, Encoding]) -> Iterator[Place]:
    """``modules``: by their names in the model."""
    both = len({name.split(".")[0] for name in modules}) > 1
    for name, encoding in modules.items():
        if not encoding.hooks:  # a control
            continue
        words = name.split(".")[0] if both and name.split(".")[0] in ("encoder", "decoder") else ""
        yield Place(words, _layer(name), encoding)


def _layer(name: str) -> str:
    """``stages.1.blocks.0.attention.encoding`` -> ``stage 1, block 0``; ``encoder.groups.3...`` -> ``layer 3``."""
    parts = re.findall(r"(\w+)\.(\d+)(?=\.)", name)
    words = {"stages": "stage", "blocks": "block"}
    return ", ".join(f"{words.get(what, 'layer')} {number}" for what, number in parts)


def _by_layers(by_settings: list[list[Place]]) -> list[list[Place]]:
    """Layers of swin differ in their heads and are shown together all the same."""
    by_part: dict[tuple[str, str], list[Place]] = {}
    for places in by_settings:
        first = places[0]
        key = (first.part, first.encoding.name if first.encoding.windowed else str(id(first)))
        by_part.setdefault(key, []).extend(places)
    return list(by_part.values())


def _subject(places: list[Place], length: int | None, overhead: int) -> Subject:
    alones = {place.layer: _alone(place.encoding) for place in places}
    first = alones[places[0].layer]
    layer = first.layer
    skipped = overhead if first.has("embed") and places[0].part != "decoder" else 0
    return Subject(
        first,
        _length(first, length, skipped),
        trained=True,
        layers=alones if len(alones) > 1 and list(layer.parameters()) else {},
        first=skipped,
    )


def _length(alone: EncodingAlone, length: int | None, skipped: int) -> int:
    layer = alone.layer
    limit = None if layer.limit is None else layer.limit - skipped
    if layer.axes > 1:
        return length or SHOWN
    if length is not None:
        if limit is not None and length > limit:
            raise PosexportError(
                f"--positions must be at most {limit}, the positions that {layer.name} takes, got {length}"
            )
        return length
    shown = SHOWN
    if alone.has("embed"):
        shown = MOST if list(layer.parameters()) else SHOWN
    elif alone.has("scores") and layer.boundaries:
        # a little beyond the farthest distance with a separate row or bucket; the query of a bias is in the
        # middle, vectors of distances are seen from both ends
        sides = 2 if met_vectors(alone, 2) is None else 1
        shown = min(MOST, max(16, math.ceil(1.25 * sides * max(layer.boundaries))))
    return shown if limit is None else min(shown, limit)


def _alone(encoding: Encoding) -> EncodingAlone:
    """The encoding with the sizes that it was made for; what it does not say it does not depend on."""
    sizes = encoding.parameters_given
    heads, head_size = _size(sizes.get("heads"), 1), _size(sizes.get("head_size"), 0)
    hidden = _size(sizes.get("hidden"), heads * (head_size or 1))
    return EncodingAlone(
        ENCODINGS[encoding.name],
        encoding.eval().requires_grad_(False),
        hidden,
        heads,
        head_size or max(1, hidden // heads),
        seed=0,
    )


def _size(value: Value, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _heading(places: list[Place], subject: Subject) -> str:
    """``decoder: t5, 5 heads, 8 buckets, not bidirectional``."""
    first = places[0]
    layers = f"{len(places)} layers" if len(subject.layers) > 1 else first.layer if subject.learned else ""
    words = settings_in_words(first.encoding, SIZES) if not subject.layers or len(places) == 1 else ""
    owner = " ".join(part for part in (first.part, layers) if part)
    what = ", ".join(part for part in (first.encoding.name, words) if part)
    return f"{owner}: {what}" if owner else what


def _joined(heading: str, inner: str) -> str:
    return "; ".join(words for words in (heading, inner) if words)


#: an initializer's name without the parameter's, for example encoder.groups.0.attention.encoding
Prefix = str
Arrays = Mapping[str, NDArray[Any]]


def encodings_of(directory: Path, manifest: Manifest) -> dict[Prefix, Encoding]:
    """Encodings by where they are in the model, from a bundle of one graph.

    Raises:
        PosexportError: it has several graphs, or its graph does not hold what an encoding learned; the sentence says
            to name the checkpoint.
    """
    if manifest.parts:
        raise _unfit(directory, f"it has {len(manifest.parts)} graphs, and the manifest names the encoding of one")
    specs = list({spec.name + repr(sorted(spec.parameters.items())): spec for spec in manifest.layers}.values())
    unknown = next((spec.name for spec in specs if ENCODINGS.get(spec.name) is None), None)
    if unknown is not None:
        raise _unfit(directory, f"{unknown} is not an encoding of the catalogue")
    encodings: dict[Prefix, Encoding] = {}
    arrays: Arrays | None = None
    for spec in specs:
        empty = _empty(spec)
        if not list(empty.parameters()):
            encodings[spec.name] = empty
            continue
        arrays = _initializers(directory / MODEL) if arrays is None else arrays
        layers = _filled(spec, empty, arrays)
        if not layers:
            raise _unfit(directory, f"its graph does not hold the parameters of {spec.name} as they were learned")
        encodings |= layers
    return encodings


def _empty(spec: EncodingSpec) -> Encoding:
    # a manifest's parameters are the arguments of the class that they were recorded from
    make: Any = ENCODINGS[spec.name].cls
    encoding: Encoding = make(**spec.parameters)
    return encoding


def _filled(spec: EncodingSpec, empty: Encoding, arrays: Arrays) -> dict[Prefix, Encoding]:
    """An encoding for every prefix with all of its parameters, in the order of the layers."""
    shapes = {name: tuple(parameter.shape) for name, parameter in empty.named_parameters()}
    first = next(iter(shapes))
    layers = {}
    for name in arrays:
        prefix, ends = name.removesuffix(f".{first}"), name.endswith(f".{first}")
        full = {parameter: f"{prefix}.{parameter}" for parameter in shapes}
        if not ends or any(key not in arrays or arrays[key].shape != shapes[p] for p, key in full.items()):
            continue
        encoding = _empty(spec)
        state = {parameter: torch.from_numpy(np.array(arrays[key])) for parameter, key in full.items()}
        encoding.load_state_dict(state, strict=False)
        layers[prefix] = encoding
    return dict(sorted(layers.items(), key=lambda item: [int(p) if p.isdigit() else -1 for p in item[0].split(".")]))


def _initializers(path: Path) -> Arrays:
    graph = ir.load(path).graph
    return {
        name: value.const_value.numpy()
        for name, value in graph.initializers.items()
        if ".encoding." in name and value.const_value is not None
    }


def _unfit(directory: Path, reason: str) -> PosexportError:
    return PosexportError(
        f"{directory} is a bundle that cannot be drawn: {reason}; name the checkpoint that it was converted from"
    )
