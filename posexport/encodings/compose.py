"""Composed encodings, for families with different layers.

Not in the catalogue: whoever makes a definition puts them together.
"""

from collections.abc import Iterable
from typing import Literal

from torch import Tensor, nn

from posexport.encodings.encoding import Encoding, Term
from posexport.encodings.positions import Positions


class ByLayer(Encoding):
    """One encoding per layer, from a list; overrides no hook itself."""

    per_layer = True

    def __init__(self, encodings: Iterable[Encoding]) -> None:
        super().__init__()
        self.encodings = nn.ModuleList(encodings)

    def in_layer(self, index: int) -> Encoding:
        encoding = self.encodings[index]
        assert isinstance(encoding, Encoding)
        return encoding


class InputAndLayers(Encoding):
    """One encoding of the embeddings, and another for every layer, for example windows in some layers.

    At least one layer has the encoding of the input, which determines the longest input.
    """

    def __init__(self, at_input: Encoding, layers: Iterable[Encoding]) -> None:
        super().__init__(**at_input.parameters_given)
        self.at_input = at_input
        self.layers = nn.ModuleList(layers)

    def in_layer(self, index: int) -> Encoding:
        encoding = self.layers[index]
        assert isinstance(encoding, Encoding)
        return encoding

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        return self.at_input.embed(x_BTC, positions)


class RotationAndTerm(Encoding):
    """The rotation of one encoding and the scores of another, for example RoPE inside a local window.

    The first may override only ``rotate``, the second only ``scores``.
    """

    def __init__(self, rotation: Encoding, term: Encoding) -> None:
        for encoding, hook in ((rotation, "rotate"), (term, "scores")):
            remaining = [other for other in encoding.hooks if other != hook]
            if remaining:
                raise ValueError(f"{encoding.name} acts through {', '.join(remaining)}, only {hook} is taken")
        super().__init__(**rotation.parameters_given, **term.parameters_given)
        self.rotation = rotation
        self.term = term
        self.name = f"{rotation.name}+{term.name}"
        self.shift_invariant = rotation.shift_invariant and term.shift_invariant
        self.padding_invariant = rotation.padding_invariant and term.padding_invariant
        self.length_dependent = rotation.length_dependent or term.length_dependent

    @property
    def trained_length(self) -> int | None:
        return min((e.trained_length for e in self._both if e.trained_length is not None), default=None)

    @property
    def limit(self) -> int | None:
        return min((e.limit for e in self._both if e.limit is not None), default=None)

    @property
    def boundaries(self) -> list[int]:
        return sorted({*self.rotation.boundaries, *self.term.boundaries})

    @property
    def cached_keys_until(self) -> int | None:
        return self.rotation.cached_keys_until

    @property
    def _both(self) -> tuple[Encoding, Encoding]:
        return self.rotation, self.term

    def rotate(self, x_BHTD: Tensor, positions: Positions, role: Literal["query", "key"]) -> Tensor:
        return self.rotation.rotate(x_BHTD, positions, role)

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term | None:
        return self.term.scores(q_BHTD, k_BHSD, queries, keys)
