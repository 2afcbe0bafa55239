"""Checks the quantized weights of a full model's file, one at a time, against the parameters that their names claim.

Where each channel of a stored weight comes from is read from the reduced model's file, whose weights are few; the full
model's channels then come from the same places in their layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import InputSpec
from posexport.base.targets.precisions import QuantizerName
from posexport.proof.full_model.identify import Array, Parameters
from posexport.proof.full_model.records import NotComparableError, Place, Places
from posexport.proof.full_model.weights import Weights
from posexport.proof.quantized.factors import set_factor
from posexport.proof.quantized.match import Candidate, Matched, Matcher, Matches, Pieces, check
from posexport.proof.quantized.read import each_use
from posexport.proof.quantized.records import FloatProduct, Floats, Stored, StoredError, Use

#: values of one weight that are compared at once
_AT_ONCE = 1 << 22
#: a weight by its role, the end of its name, and whether it is looked up
_Claim = tuple[str, str, bool]


@dataclass(frozen=True)
class _Origin:
    """Of every channel of a stored weight: which of ``parameters``, by role, and which of its rows; -1: unknown."""

    parameters: Sequence[tuple[str, bool]]
    which: NDArray[np.intp]
    row: NDArray[np.intp]


class QuantizedWeights:
    """The quantized weights of one file."""

    def __init__(
        self, path: Path, inputs: Sequence[InputSpec], weights: Weights, parameters: Parameters, places: Places
    ) -> None:
        self._path, self._inputs, self._weights = path, inputs, weights
        self._parameters, self._places = parameters, places

    def origins(self) -> dict[_Claim, list[_Origin]]:
        """Where the channels of a reduced model come from, by their signs."""
        origins: dict[_Claim, list[_Origin]] = {}
        for use, claim, place in self._uses():
            names = self._layer(place)
            matched = Matcher({name: self._parameters.array(name) for name in names.values()}).match(use.stored)
            roles = {name: role for role, name in names.items()}
            origins.setdefault(claim, []).append(_origin(matched, roles))
        return origins

    def check(self, origins: Mapping[_Claim, list[_Origin]], quantizer: QuantizerName | None) -> Matches:
        """What they are; raises StoredError where one is not its parameter, rounded."""
        matches = {}
        for use, claim, place in self._uses():
            if claim not in origins:
                raise StoredError(f"{use.stored.name} is quantized, and the reduced model's is not")
            names = self._layer(place)
            errors = []
            for origin in origins[claim]:
                try:
                    matches[use.stored.name, use.lookup] = self._check(use, origin, names, quantizer)
                    break
                except StoredError as err:
                    errors.append(err)
            else:
                raise errors[0]
            self._parameters.free(names.values())
        return matches

    def _uses(self) -> Iterator[tuple[Use, _Claim, Place]]:
        seen: set[tuple[str, bool]] = set()
        for use in each_use(self._path, self._inputs):
            if isinstance(use, FloatProduct) or (use.stored.name, use.lookup) in seen:
                continue
            seen.add((use.stored.name, use.lookup))
            if any(rounding.kind == "static" for rounding in use.roundings):
                raise NotComparableError("activations have scales that were measured on texts, in every layer others")
            claim = self._weights.claim(use.stored.name)
            if claim is None:
                raise StoredError(f"{use.stored.name} is quantized, and its name says no parameter that it is made of")
            place = self._places[claim[0]]
            yield use, (place.role, claim[1], use.lookup), place

    def _layer(self, place: Place) -> dict[str, str]:
        """Names of parameters by role: of the layer, or of all that belong to none."""
        here = place.stack, place.layer
        every = {self._places[name].role: name for name in self._parameters if self._of(name) == here}
        return {role: name for role, name in every.items() if place.layer >= 0 or role == place.role}

    def _of(self, name: str) -> tuple[str, int]:
        return self._places[name].stack, self._places[name].layer

    def _check(
        self, use: Use, origin: _Origin, names: Mapping[str, str], quantizer: QuantizerName | None
    ) -> tuple[Pieces, Floats]:
        stored = use.stored
        count = max(1, _AT_ONCE // max(1, stored.whole.shape[1]))
        which, row = _extended(origin, len(stored.whole))
        whole = self._matched(stored, origin, which, row, names)
        set_factor(whole, use, self._parameters.vectors)
        for start in range(0, len(stored.whole), count):
            channels = slice(start, start + count)
            chunk = replace(
                stored,
                name=f"{stored.name}" if len(stored.whole) <= count else f"{stored.name} from channel {start} on",
                whole=stored.whole[channels],
                scale=stored.scale[channels],
                zero=stored.zero[channels],
            )
            matched = self._matched(chunk, origin, which[channels], row[channels], names)
            matched.factor = whole.factor
            check(matched, quantizer)
        return whole.pieces, whole.factor

    def _matched(self, chunk: Stored, origin: _Origin, which: Array, row: Array, names: Mapping[str, str]) -> Matched:
        pieces = []
        for number, (role, transposed) in enumerate(origin.parameters):
            channels = np.flatnonzero(which == number)
            if not len(channels):
                continue
            if role not in names:
                raise StoredError(f"{chunk.name}: its layer has no {role}")
            matrix = self._parameters.matrix(names[role])
            matrix = matrix.T if transposed else matrix
            if matrix.shape[1] != chunk.whole.shape[1] or row[channels].max() >= len(matrix):
                raise StoredError(f"{chunk.name} has other sizes than {names[role]}")
            pieces.append((Candidate(names[role], matrix, transposed), channels, row[channels]))
        if sum(len(channels) for _, channels, _ in pieces) < len(chunk.whole):
            raise NotComparableError(f"{chunk.name}: it is not known where all of its channels come from")
        return Matched(chunk, pieces)


def _origin(matched: Matched, roles: Mapping[str, str]) -> _Origin:
    count = len(matched.stored.whole)
    which, row = np.full(count, -1, np.intp), np.full(count, -1, np.intp)
    parameters = []
    for number, (candidate, channels, rows) in enumerate(matched.pieces):
        parameters.append((roles[candidate.name], candidate.transposed))
        which[channels], row[channels] = number, rows
    return _Origin(parameters, which, row)


def _extended(origin: _Origin, count: int) -> tuple[Array, Array]:
    """For ``count`` channels: those that are 0 in the reduced model, or beyond its vocabulary, follow those before."""
    which, row = np.full(count, -1, np.intp), np.full(count, -1, np.intp)
    size = min(count, len(origin.which))
    which[:size], row[:size] = origin.which[:size], origin.row[:size]
    known = np.flatnonzero(which >= 0)
    for channel in np.flatnonzero(which < 0) if len(known) else ():
        before = known[max(0, int(np.searchsorted(known, channel)) - 1)]
        which[channel], row[channel] = which[before], row[before] + channel - before
    return which, row
