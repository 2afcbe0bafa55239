"""What the definition's parameters are in a file: their numbers, and how what they multiply is rounded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from posexport.parity.quantized.match import Matched
from posexport.parity.quantized.records import Array, FloatProduct, Rounding, StoredError, Use


@dataclass(eq=False)
class Form:
    """One parameter as a product or a lookup of a file has it.

    Attributes:
        pieces: stored weights with which of their channels are which rows.
        transposed: the parameter is [K, N].
        factor: [K], what rows were multiplied by and activations are divided by.
        roundings: of its products in the order of the nodes.
        places: of these products among all nodes.
    """

    name: str
    rows: int
    transposed: bool
    lookup: bool
    factor: Array
    roundings: list[Rounding] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    pieces: list[tuple[Use, Array, Array]] = field(default_factory=list)

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """[N, K] as it is stored, factors and all."""
        k = self.pieces[0][0].stored.whole.shape[1]
        wide = dtype if dtype in (torch.float64, torch.float32) else torch.float32
        result = torch.zeros((self.rows, k), dtype=wide)
        for use, channels, rows in self.pieces:
            result[torch.from_numpy(rows)] = torch.from_numpy(use.stored.real(channels)).to(wide)
        return result.to(dtype)

    def with_float(self, parameter: Array, plain: Sequence[FloatProduct]) -> None:
        """Find products that read ``parameter`` itself: DeBERTa projects positions by the weights of the content."""
        if self.lookup:
            return
        matrix = parameter.reshape([size for size in parameter.shape if size > 1] or [1])
        rows = matrix.T if self.transposed else matrix
        more = [(product.place, Rounding("float")) for product in plain if product.has(rows)]
        placed = sorted([*zip(self.places, self.roundings, strict=True), *more], key=lambda pair: pair[0])
        self.places, self.roundings = ([pair[which] for pair in placed] for which in (0, 1))  # type: ignore[assignment]


def forms(found: Sequence[tuple[Use, Matched]], zero_rows: Mapping[str, set[int]]) -> dict[tuple[str, bool], Form]:
    """By parameter, and whether it is looked up.

    Raises:
        StoredError: of a parameter some rows are stored and others are not.
    """
    result: dict[tuple[str, bool], Form] = {}
    for use, matched in found:
        for candidate, channels, rows in matched.pieces:
            key = candidate.name, use.lookup
            form = result.get(key)
            if form is None:
                size = len(candidate.matrix)
                form = Form(candidate.name, size, candidate.transposed, use.lookup, matched.factor)
                form.roundings, form.places = list(use.roundings), list(use.places)
                result[key] = form
            elif (form.factor != matched.factor).any() or form.transposed != candidate.transposed:
                raise StoredError(f"{use.stored.name}: its part of {form.name} is not stored as the others are")
            form.pieces.append((use, channels, rows))
    for form in result.values():
        missing = set(range(form.rows)) - zero_rows.get(form.name, set())
        for _, _, rows in form.pieces:
            missing -= set(rows.tolist())
        if missing:
            raise StoredError(
                f"{form.pieces[0][0].stored.name} has {form.name} without its row {min(missing)}"
                f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}"
            )
    return result


def biases_differ(found: Sequence[tuple[Use, Matched]], biases: Mapping[str, Array]) -> Iterator[str]:
    """Sentences on products to which other biases are added than the definition's."""
    for use, matched in found:
        for added in use.biases:
            if added is None:
                continue
            for candidate, channels, rows in matched.pieces:
                own = biases.get(candidate.name)
                if own is None or own.shape != (len(candidate.matrix),):
                    continue
                wrong = np.flatnonzero(
                    np.abs(added[channels].astype(np.float64) - own[rows]) > 1e-3 * np.abs(own).max()
                )
                if len(wrong):
                    yield (
                        f"{use.stored.name}: what is added to channel {int(channels[wrong[0]])} is not the bias of "
                        f"{candidate.name} ({len(wrong)} of {len(rows)} differ)"
                    )
