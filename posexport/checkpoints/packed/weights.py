"""The weights of a checkpoint with linear layers of 4 bits, as if it had them in float32."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from posexport.checkpoints.packed.layouts import Layout
from posexport.checkpoints.weights import Reader, Weights
from posexport.errors import PosexportError
from posexport.graph.precision.blocks.stored_rows import StoredRows


@dataclass
class Unpacked:
    """Reads one linear layer's weight. Fills ``rows``.

    ``names``: of its tensors by the ends of their names; ``target``: the name of the weight.
    """

    layout: Layout
    weights: Weights
    names: Mapping[str, str]
    rows: StoredRows
    target: str

    def __post_init__(self) -> None:
        self.shapes = {self.target: self.layout.shape(self._tensor, self._sizes)}
        self.dtypes: dict[str, torch.dtype | None] = {self.target: torch.float32}

    def read(self, name: str) -> Tensor:
        """The weight, float32 [N, K], in new memory."""
        packed = self.layout.read(self._tensor, self._sizes)
        if int(packed.groups.max()) + 1 != packed.scales.shape[1]:
            raise PosexportError(
                f"{self.weights.label}: {name} has scales for {packed.scales.shape[1]} groups of inputs, needed "
                f"{int(packed.groups.max()) + 1}: group_size in config.json is not the file's"
            )
        real, order = packed.real(), packed.order
        if order is None:
            self.rows.unequal.add(name)
        else:
            self.rows.add(name, real.numpy(), packed.scales.numpy(), packed.zeros.numpy(), order.numpy())
            self.rows.codes = None if packed.codes is None else packed.codes.numpy()
        return real

    def as_pages(self, name: str) -> nn.Parameter | None:
        """None: the file has no float32 numbers."""
        return None

    def _tensor(self, end: str) -> Tensor:
        return self.weights.read(self.names[end], integers=True)

    @property
    def _sizes(self) -> Mapping[str, list[int]]:
        return {end: self.weights.shapes[name] for end, name in self.names.items()}


def unpacked(weights: Weights, layout: Layout) -> tuple[Weights, StoredRows]:
    """The weights with ``NAME.weight`` instead of a layer's packed tensors; how these were rounded, once read."""
    first, *_ = layout.tensors
    rows = StoredRows()
    readers: dict[str, Reader] = {}
    taken: set[str] = set()
    for whole in [name for name in weights.shapes if name.endswith(f".{first}")]:
        layer = whole.removesuffix(first)
        names = {end: layer + end for end in layout.tensors if layer + end in weights.shapes}
        taken.update(names.values())
        target = f"{layer}weight"
        readers[target] = Unpacked(layout, weights, names, rows, target)
    remaining = [name for name in weights.shapes if name not in taken]
    biases = [name for name in remaining if name.endswith(".bias") and f"{name.removesuffix('bias')}weight" in readers]
    shapes = {name: weights.shapes[name] for name in remaining} | {n: r.shapes[n] for n, r in readers.items()}
    dtypes = {name: weights.dtypes[name] for name in remaining} | dict.fromkeys(readers, torch.float32)
    result = replace(
        weights,
        readers={name: weights.readers[name] for name in remaining} | readers,
        shapes=shapes,
        dtypes=dtypes,
        needless=frozenset(name for name in biases if not weights.read(name).any()),
    )
    return result, rows
