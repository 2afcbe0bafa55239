"""The whole check of a full model's file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from posexport.base.spec import InputSpec
from posexport.base.targets.precisions import QuantizerName
from posexport.proof.full_model.digests import Digests
from posexport.proof.full_model.file import File
from posexport.proof.full_model.identify import Parameters
from posexport.proof.full_model.quantized import QuantizedWeights
from posexport.proof.full_model.records import Places, Stacks
from posexport.proof.full_model.structure import compare
from posexport.proof.full_model.weights import Weights, Words
from posexport.proof.quantized.match import Matches

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Layers:
    """What was compared: layers of the full model, and its stored weights; ``matches``: what quantized ones are."""

    layers: int
    weights: int
    matches: Matches


def check(
    full: Path,
    reduced: Path,
    stacks: Stacks,
    parameters: "Mapping[str, Tensor]",
    reduced_parameters: "Mapping[str, Tensor]",
    *,
    graphs: "Sequence[Mapping[str, Tensor]]" = ({}, {}),
    inputs: Sequence[InputSpec] = (),
    words: Words | None = None,
    quantizer: QuantizerName | None = None,
) -> Layers:
    """Compare ``full`` with ``reduced`` and with the full model's ``parameters`` (all names of tied ones).

    ``graphs``: the parameters of both by the names that a part has for them, where these are others. ``inputs``: of the
    graph, with their roles; ``quantizer``: how weights were rounded, if a recipe says so.

    Raises:
        StoredError: it is wrong: a layer computes something else, a weight is not the checkpoint's.
        NotComparableError: it cannot be said, because its layers are no chain, or the reduced model lacks a kind.
    """
    reduced_stacks = {path: stack.reduced for path, stack in stacks.items()}
    both = zip((parameters, reduced_parameters), graphs, strict=True)
    known, reduced_known = (Parameters(*each) for each in both)
    places = Places(known.aliases, stacks)
    reduced_places = Places(reduced_known.aliases, reduced_stacks, places)
    reduced_file, full_file = File(reduced), File(full)
    reduced_weights = Weights(reduced_file, reduced_known, reduced_places)
    reduced_digests = Digests(reduced_file, reduced_weights, reduced_stacks)
    weights = Weights(full_file, known, places, words)
    digests = Digests(full_file, weights, stacks)
    compare(digests, reduced_digests)
    matches: Matches = {}
    if any(weights.claim(name) is not None for name in full_file.tensors):
        origins = QuantizedWeights(reduced, inputs, reduced_weights, reduced_known, reduced_places).origins()
        matches = QuantizedWeights(full, inputs, weights, known, places).check(origins, quantizer)
    return Layers(sum(len(stack.kinds) for stack in stacks.values()), len(full_file.tensors), matches)
