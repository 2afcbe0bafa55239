"""What each constant of a graph is: a parameter, a quantized weight that its name claims, or a constant."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from posexport.proof.full_model.file import File
from posexport.proof.full_model.identify import Parameters, Piece
from posexport.proof.full_model.records import Place, Places
from posexport.proof.quantized.factors import undivided

#: names of what quantization makes of a parameter (`posexport.graph.precision.derived`)
_QUANTIZED = re.compile(r"(_packed)?(_(bits|int)[48])?(_rows?)?(_scale|_zero)?")
#: alternatives of one tensor that are tried
_ALTERNATIVES = 64


@dataclass(frozen=True)
class Words:
    """Sizes of the vocabularies of the full and the reduced model."""

    full: int
    reduced: int

    def number(self, value: int) -> int:
        """What the full model's ``value`` is in the reduced model: the last word's id too."""
        return value - self.full + self.reduced if value in (self.full, self.full - 1) else value


@dataclass(frozen=True)
class Meaning:
    """What a tensor may be.

    Attributes:
        digest: of its type, sizes and numbers; empty for a weight's.
        places: alternatives, each the pieces' places with what tells pieces apart.
        named: of a weight whose name says which alternative it is, as long as one node reads it.
    """

    digest: str
    places: tuple[tuple[tuple[Place, Any], ...], ...] = ()
    named: bool = False

    @property
    def layers(self) -> set[tuple[str, int]]:
        """The layers that it may belong to: of each alternative the last."""
        return {
            max((place.stack, place.layer) for place, _ in pieces)
            for pieces in self.places
            if any(place.layer >= 0 for place, _ in pieces)
        }


class Weights:
    """Of one file; ``words`` brings the full model's vocabulary to the reduced one's."""

    def __init__(self, file: File, parameters: Parameters, places: Places, words: Words | None = None) -> None:
        self._file, self._parameters, self._places, self._words = file, parameters, places, words
        self._first = parameters.named
        self._meanings: dict[str, Meaning] = {}

    def __getitem__(self, name: str) -> Meaning:
        if name not in self._meanings:
            self._meanings[name] = self._meaning(name)
        return self._meanings[name]

    def __contains__(self, name: str) -> bool:
        return name in self._file.tensors

    def claim(self, name: str) -> tuple[str, str] | None:
        """The parameter that a quantized tensor's name says it is made of, and the end of its name."""
        name = self._file.stored_as.get(name, name)
        end = len(name)
        while (end := name.rfind("_", 0, end)) > 0:
            if name[:end] in self._first and _QUANTIZED.fullmatch(name[end:]):
                return self._first[name[:end]], name[end:]
        return None

    def contents(self, tensor: TensorProto, array: NDArray[Any] | None = None) -> tuple[Any, ...]:
        """Type, sizes and numbers of a constant, with the reduced model's vocabulary."""
        array = self._file.array(tensor) if array is None else array
        dims = tuple(map(self.size, array.shape))
        if self._words is not None and array.dtype.kind in "iu" and array.size < 1024:
            array = np.array([self.size(int(value)) for value in array.flat], array.dtype).reshape(array.shape)
        return TensorProto.DataType.Name(tensor.data_type), dims, _hash(array)

    def size(self, value: int) -> int:
        return value if self._words is None else self._words.number(value)

    def _meaning(self, name: str) -> Meaning:
        tensor = self._file.tensors[name]
        claim = self.claim(name)
        if claim is not None:
            parameter, key = claim
            return Meaning("", (((self._places[parameter], (key, tensor.data_type)),),), named=True)
        array = self._file.constant(name)
        original = undivided(name, array, self._parameters.vectors)
        array = array if original is None else original
        content = self._parameters.content(array) if array.dtype.kind in "fV" else None
        literal = repr(self.contents(tensor, array)) if content is None or _constant(array) else ""
        if content is None:
            return Meaning(literal)
        first = self._first.get(name)
        named = first is not None and any(piece.name == first for run in content.runs for piece in run)
        runs = content.runs
        if named:
            runs = tuple(tuple(p for p in run if p.name == first) or run for run in runs)
        dims = (tensor.data_type, len(tensor.dims), content.across)
        places = tuple(self._pieces(pieces, dims) for pieces in _combinations(runs))
        return Meaning(literal, places, named)

    def _pieces(self, pieces: tuple[Piece, ...], form: Any) -> tuple[tuple[Place, Any], ...]:
        return tuple(
            (self._places[p.name] if p.name else Place("", -1, p.form), (form, p.form, p.start, p.count))
            for p in pieces
        )


def _combinations(runs: tuple[tuple[Piece, ...], ...]) -> Iterator[tuple[Piece, ...]]:
    for count, pieces in enumerate(product(*runs)):
        if count == _ALTERNATIVES:
            return
        yield pieces


def _constant(array: NDArray[Any]) -> bool:
    """Whether all numbers are the same."""
    if not array.size:
        return False
    corner = array[tuple(slice(8) for _ in array.shape)]  # most differ there; a transposed matrix is not copied
    return bool((corner == corner.flat[0]).all() and (array == corner.flat[0]).all())


def _hash(array: NDArray[Any]) -> str:
    bits = repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes()
    return hashlib.sha256(bits).hexdigest()[:32]
