"""The whole check of a full model's file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from posexport.parity.full_model.digests import Digests
from posexport.parity.full_model.file import File
from posexport.parity.full_model.identify import Parameters
from posexport.parity.full_model.records import Places, Stacks
from posexport.parity.full_model.structure import compare, first_hashes
from posexport.parity.full_model.weights import Weights, Words

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Layers:
    """What was compared: layers of the full model, and its stored weights."""

    layers: int
    weights: int


def check(
    full: Path | onnx.ModelProto,
    reduced: Path | onnx.ModelProto,
    stacks: Stacks,
    parameters: "Mapping[str, Tensor]",
    reduced_parameters: "Mapping[str, Tensor]",
    *,
    words: Words | None = None,
) -> Layers:
    """Compare ``full`` with ``reduced`` and with the full model's ``parameters`` (all names of tied ones).

    Raises:
        StoredError: it is wrong: a layer computes something else, a weight is not the checkpoint's.
        NotComparableError: it cannot be said, because its layers are no chain, or the reduced model lacks a kind.
    """
    reduced_stacks = {path: stack.reduced for path, stack in stacks.items()}
    known, reduced_known = Parameters(parameters), Parameters(reduced_parameters)
    places = Places(known.aliases, stacks)
    reduced_places = Places(reduced_known.aliases, reduced_stacks, places)
    reduced_file, full_file = File(reduced), File(full)
    reduced_digests = Digests(reduced_file, Weights(reduced_file, reduced_known, reduced_places), reduced_stacks)
    weights = Weights(full_file, known, places, words)
    digests = Digests(full_file, weights, stacks, first_hashes(reduced_digests))
    compare(digests, reduced_digests)
    return Layers(sum(len(stack.kinds) for stack in stacks.values()), len(full_file.tensors))
