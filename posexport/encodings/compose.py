"""Encodings made of others, for families whose layers differ.

Not in the catalogue: whoever makes a definition puts them together.
"""

from collections.abc import Iterable
from typing import Literal

from torch import Tensor, nn

from posexport.encodings.base import Encoding, Term
from posexport.encodings.positions import Positions


class ByLayer(Encoding):
    """Gives every layer the encoding that stands at its place in a list; acts through no hook itself."""

    per_layer = True

    def __init__(self, encodings: Iterable[Encoding]) -> None:
        super().__init__()
        self.encodings = nn.ModuleList(encodings)

    def in_layer(self, index: int) -> Encoding:
        """The list's encoding ``index``."""
        found = self.encodings[index]
        assert isinstance(found, Encoding)
        return found


class RotationAndTerm(Encoding):
    """Rotates as one encoding does and adds the scores of another, such as rotations inside a local window.

    Both must be shift invariant. Positions that one of them adds to embeddings or values are not taken.
    """

    def __init__(self, rotation: Encoding, term: Encoding) -> None:
        super().__init__()
        if not rotation.shift_invariant or not term.shift_invariant:
            raise ValueError(f"{rotation.name} and {term.name} must both be shift invariant")
        self.rotation = rotation
        self.term = term

    @property
    def trained_length(self) -> int | None:
        """The smaller of both."""
        return min((e.trained_length for e in self._both if e.trained_length is not None), default=None)

    @property
    def limit(self) -> int | None:
        """The smaller of both."""
        return min((e.limit for e in self._both if e.limit is not None), default=None)

    @property
    def boundaries(self) -> list[int]:
        """Those of both."""
        return sorted({*self.rotation.boundaries, *self.term.boundaries})

    @property
    def _both(self) -> tuple[Encoding, Encoding]:
        return self.rotation, self.term

    def rotate(self, x_BHTD: Tensor, positions: Positions, role: Literal["query", "key"]) -> Tensor:
        """As the first does."""
        return self.rotation.rotate(x_BHTD, positions, role)

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term | None:
        """As the second does."""
        return self.term.scores(q_BHTD, k_BHSD, queries, keys)
