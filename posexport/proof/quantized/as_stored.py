"""The source of a quantized file: its definition with the file's weights, rounding activations as the file does."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from torch import nn

from posexport.base.system.machine import available
from posexport.base.targets.precisions import QuantizerName
from posexport.proof.quantized.factors import set_factor, vectors
from posexport.proof.quantized.match import Matched, Matcher, Matches, check
from posexport.proof.quantized.module import KEPT, AsStored, Form, biases_differ, forms
from posexport.proof.quantized.read import read
from posexport.proof.quantized.records import Array, StoredError, Use
from posexport.sources import memory_mapped
from posexport.sources.lazy_parameters import numbers, values
from posexport.sources.source import Source

#: of the free memory: what weights that a grid reads may take unpacked
_PART = 5


def as_stored(
    source: Source,
    model: Path | bytes,
    quantizer: QuantizerName | None = None,
    matches: Mapping[str, Matches] | None = None,
) -> Source:
    """``source`` with the quantized weights of ``model``, a file or, of parts, the directory of their files.

    ``quantizer``: how weights of 4 bits were rounded, if a recipe says so. ``matches``: by file, where
    `posexport.proof.full_model` has compared all weights: they are not looked for again.

    Its float64 run is what the file says; its float32 run has PyTorch's errors, and falls to the other side of ties.

    Raises:
        StoredError: a weight of the file is not the definition's, or is quantized in a way that is not known.
    """
    parameters = dict(source.module.named_parameters())
    matrices = {
        name: numbers(parameter)
        for name, parameter in parameters.items()
        if parameter.ndim >= 2 and parameter.is_floating_point()
    }
    everywhere = None if matches else _Everywhere(matrices, _vectors(source.module), quantizer)
    biases = _biases(source.module)

    def zeros(name: str) -> set[int]:
        array = matrices[name]
        found = np.flatnonzero(~array.reshape(len(array), -1).any(1))
        memory_mapped.release([parameters[name]])
        return set(found.tolist())

    by_file: dict[str, dict[tuple[str, bool], Form]] = {}
    # one file may be two parts, of the same inputs
    graphs = {part.spec.file: part.spec.inputs for part in source.parts} or {"": source.inputs}
    for file, inputs in graphs.items():
        path = model / file if file and isinstance(model, Path) else model
        uses, float_products = read(path, inputs)
        match = everywhere or partial(_known, _of_file(matches or {}, file))
        matched = [(use, match(use)) for use in uses]
        for sentence in biases_differ(matched, biases):
            raise StoredError(sentence)
        by_file[file] = forms(matched, zeros)
        for form in by_file[file].values():
            form.with_float(matrices[form.name], float_products)
    forms_by_place = _by_place(source, by_file)
    # a full model is called a few times, a grid's often
    kept = 0 if matches else max(KEPT, available() // _PART)
    return msgspec.structs.replace(source, module=AsStored(source.module, forms_by_place, kept))


class _Everywhere:
    """Matches a stored weight with all parameters, and compares it with those that it is."""

    def __init__(
        self, matrices: Mapping[str, Array], vectors: Mapping[str, Array], quantizer: QuantizerName | None
    ) -> None:
        self._matcher, self._vectors, self._quantizer = Matcher(matrices), vectors, quantizer

    def __call__(self, use: Use) -> Matched:
        matched = self._matcher.match(use.stored)
        set_factor(matched, use, self._vectors)
        check(matched, self._quantizer)
        return matched


def _of_file(matches: Mapping[str, Matches], file: str) -> Matches:
    """Of a source without parts there is one file, whatever it is called."""
    return matches[file] if file else next(iter(matches.values()))


def _known(matches: Matches, use: Use) -> Matched:
    pieces, factor = matches[use.stored.name, use.lookup]
    return Matched(use.stored, pieces, factor)


def _vectors(module: nn.Module) -> Mapping[str, Array]:
    """What normalisations may multiply by: parameters, and buffers, where a module keeps constants."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return vectors({name: tensor.detach().numpy() for name, tensor in tensors.items() if tensor.ndim == 1})


def _biases(module: nn.Module) -> Mapping[str, Array]:
    """By the name of the weight that a bias belongs to."""
    parameters = dict(module.named_parameters())
    matches = {}
    for name in parameters:
        bias = parameters.get(name.removesuffix("weight") + "bias") if name.endswith("weight") else None
        if bias is not None:
            matches[name] = values(bias).numpy()
    return matches


def _by_place(source: Source, by_file: Mapping[str, dict[tuple[str, bool], Form]]) -> dict[tuple[str, bool], Form]:
    """The form of each name by which a module reads a parameter; tied ones may have one for each file.

    Names in a part that runs once (an encoder) get the form of the first file, others the last file's.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in source.module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    first = {id(submodule) for submodule in getattr(source.module, "reused", ())}
    inside = {
        f"{path}." for path, submodule in source.module.named_modules(remove_duplicate=False) if id(submodule) in first
    }
    places = {}
    for same in names.values():
        for lookup in (False, True):
            several = [matches[same[0], lookup] for matches in by_file.values() if (same[0], lookup) in matches]
            for name in same if several else ():
                places[name, lookup] = several[0 if name.startswith(tuple(inside)) else -1]
    return places
