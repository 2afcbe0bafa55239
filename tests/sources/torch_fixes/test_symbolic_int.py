"""Sizes that Python makes numbers of stay symbolic in a trace: the graph's values at another size are the module's."""

import math
import sys

import numpy as np
import torch
from torch import Tensor, nn

from posexport.sources.torch_fixes.symbolic_int import with_symbolic_ints
from tests.tolerances import agree


class Sizes(nn.Module):
    """Everything that is replaced."""

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[1:]
        assert isinstance(len(x.shape), int)
        twice = int(height * 2)
        sizes = torch.as_tensor([(height, width), (twice, len(x))])
        rows = torch.linspace(0.5, height - 0.5, height, dtype=x.dtype)
        first, second = torch.cat((x, 2 * x)).split(x.shape[0])  # type: ignore[no-untyped-call]
        out: Tensor = (first + second) * rows[:, None] / math.sqrt(width) + sizes.sum() + torch.ones(twice).sum()
        return out + torch.ones(int(np.ceil(width / 4)), int(np.floor(height / 3)) + 1).sum() * np.ceil(0.5)


class Traced(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        with with_symbolic_ints(self.module, lambda name: name == __name__):
            out: Tensor = self.module(x)
        return out


def test_the_graph_takes_other_sizes() -> None:
    module, auto = Sizes(), torch.export.Dim.AUTO
    program = torch.export.export(
        Traced(module), (torch.randn(3, 8, 6),), dynamic_shapes=({0: auto, 1: auto, 2: auto},), strict=False
    ).module()
    for shape in ((3, 8, 6), (2, 11, 7), (5, 4, 9)):
        x = torch.randn(shape, dtype=torch.float32)
        agree(program(x), module(x), "operator", torch.float32)
    assert "int" not in globals()
    assert "len" not in globals()
    assert globals()["math"] is sys.modules["math"]
    assert globals()["np"] is sys.modules["numpy"]
