"""Every transform makes the shape that it says, and the values that its name says."""

import numpy as np
import pytest
import torch

from posexport.checkpoints.mapping import (
    AddRow,
    Origin,
    Reshape,
    Scale,
    SplitFused,
    Transform,
    Transpose,
    WeightNorm,
)
from tests.tolerances import agree_each

#: by name; the norms of `WeightNorm` are 1 to 4
OTHERS = {"table": torch.arange(12.0).view(3, 4), "norms": torch.arange(1.0, 5.0).view(1, 1, 4)}


def applied(origin: Origin, value: torch.Tensor, output: list[int]) -> torch.Tensor:
    """The parameter, with every shape on the way compared."""
    stored, *shapes = origin.shapes(output)
    assert list(value.shape) == list(stored)
    for transform, shape in zip(origin.transforms, shapes, strict=True):
        for (name, *_), needed in transform.also_reads(shape).items():
            assert list(OTHERS[name].shape) == list(needed)
        value = transform.apply(value, shape, lambda names: OTHERS[names[0]])
        assert list(value.shape) == list(shape)
    return value


@pytest.mark.parametrize(
    ("transforms", "stored", "output", "rows"),
    [
        ((Scale(0.5),), [2, 4], [2, 4], [[0, 0.5, 1, 1.5], [2, 2.5, 3, 3.5]]),
        ((Transpose(),), [3, 2], [2, 3], [[0, 2, 4], [1, 3, 5]]),
        ((Transpose(),), [3], [3], [0, 1, 2]),
        ((Reshape((1, 2, 2)),), [1, 2, 2], [2, 2], [[0, 1], [2, 3]]),
        ((Reshape((2, 1, 3)), Transpose()), [2, 1, 3], [3, 2], [[0, 3], [1, 4], [2, 5]]),
        # Q, K and V one after the other, and head by head
        ((SplitFused(1),), [6, 1], [2, 1], [[2], [3]]),
        ((SplitFused(1, groups=2),), [6, 1], [2, 1], [[1], [4]]),
        # two groups of two heads of queries and a KV head
        ((SplitFused(0, parts=4, groups=2, width=2),), [8, 1], [4, 1], [[0], [1], [4], [5]]),
        ((SplitFused(3, parts=4, groups=2),), [8, 1], [2, 1], [[3], [7]]),
        ((AddRow("table", 3),), [2, 4], [2, 4], [[0, 2, 4, 6], [4, 6, 8, 10]]),
    ],
)
def test_values(transforms: tuple[Transform, ...], stored: list[int], output: list[int], rows: list[float]) -> None:
    value = torch.arange(float(torch.Size(stored).numel())).view(stored)
    assert torch.equal(applied(Origin(("a",), transforms), value, output), torch.tensor(rows, dtype=torch.float32))


def test_weight_norm() -> None:
    value = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(2))
    out = applied(Origin(("a",), (WeightNorm(("norms", "other")),)), value.clone(), [5, 3, 4])
    agree_each(out.flatten(0, 1).norm(dim=0), torch.arange(1.0, 5.0), "rounded", np.float32)
    assert torch.equal(out.sign(), value.sign())


def test_parameters_below_modules() -> None:
    origin = Origin(("layers.{i}.qkv",), (SplitFused(0),)).renamed(lambda name: name.format(i=3)).below("bias")
    assert origin == Origin(("layers.3.qkv.bias",), (SplitFused(0),))
    assert origin.then(Scale(2)).transforms == (SplitFused(0), Scale(2))
