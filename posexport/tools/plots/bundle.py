"""The position encodings of a bundle: made as its manifest says, with the tables that its graph holds by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

import posexport.encodings  # noqa: F401  # fills the registry
from posexport.bundle.manifest import Manifest
from posexport.bundle.read import read
from posexport.encodings.encoding import ENCODINGS, Encoding
from posexport.errors import PosexportError
from posexport.spec import MODEL, EncodingSpec

#: an initializer's name without the parameter's, such as encoder.groups.0.attention.encoding
Prefix = str
Arrays = Mapping[str, NDArray[Any]]


def encodings_of(directory: Path) -> tuple[dict[Prefix, Encoding], Manifest]:
    """Encodings by where they are in the model, from a bundle of one graph.

    Raises:
        PosexportError: it is damaged, it has several graphs, or its graph does not hold what an encoding learned; the
            sentence says to name the checkpoint.
    """
    manifest = read(directory)
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
    return encodings, manifest


def _empty(spec: EncodingSpec) -> Encoding:
    # a manifest's parameters are the arguments of the class that they were recorded from
    make: Any = ENCODINGS[spec.name].cls
    encoding: Encoding = make(**spec.parameters)
    return encoding


def _filled(spec: EncodingSpec, empty: Encoding, arrays: Arrays) -> dict[Prefix, Encoding]:
    """An encoding for every place where all of its parameters are found, in the order of the layers."""
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
