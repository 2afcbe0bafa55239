"""Kinds of code in modules of packages: slices, strides, branches by weights, tensors outside of the module."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posexport
from posexport.errors import PosexportError
from posexport.sources.torch_fixes.default_dtype import computing_in
from tests.small import proven
from tests.tolerances import agree

D = 12
X = torch.randn(2, 9, D, generator=torch.Generator().manual_seed(1))


class Rotated(nn.Module):
    """The distances of rotations in the complex plane, as of links between the nodes of a graph."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.view_as_complex(self.project(x).unflatten(-1, (-1, 2)))
        return turned.norm(p=1, dim=-1) + torch.linalg.vector_norm(turned, dim=-1)


def test_norms_of_complex_numbers(tmp_path: Path) -> None:
    proven(Rotated().eval(), tmp_path / "b", example_inputs={"x": X}, lengths=[1, 7])


class InSegments(nn.Module):
    """Pads to whole segments, and cuts the padding off by a negative end where there is any."""

    def forward(self, x: Tensor) -> Tensor:
        padding = -x.shape[1] % 4
        sums = F.pad(x, (0, 0, 0, padding)).unflatten(1, (-1, 4)).cumsum(2).flatten(1, 2)
        return sums[:, :-padding] if padding > 0 else sums


def test_a_padding_that_is_cut_off_may_be_none(tmp_path: Path) -> None:
    """The example has padding, lengths of 4 and 8 have none."""
    proven(InSegments().eval(), tmp_path / "b", example_inputs={"x": X}, lengths=[1, 4, 8, 11])


class Strided(nn.Module):
    """A relative shift by strides, as of distances between the bases of a genome."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]

        def shifted(row: Tensor) -> Tensor:
            return torch.outer(row, torch.arange(2 * n - 1) + 1.0).flatten().as_strided((n, n), (2 * n - 2, 1), n - 1)

        return torch.vmap(shifted)(x[..., 0])


def test_strides_of_sizes(tmp_path: Path) -> None:
    proven(Strided().eval(), tmp_path / "b", example_inputs={"x": X}, lengths=[2, 7])


def signed(x: Tensor, curvature: Tensor) -> Tensor:
    below = curvature.sign().masked_fill(curvature == torch.zeros((), dtype=curvature.dtype), 0.0).add_(-0.5)
    if torch.all(below < 0):
        return x.tanh()
    return x.exp()


with warnings.catch_warnings(action="ignore"):
    scripted = torch.jit.script(signed)


class Curved(nn.Module):
    """Chooses a formula by the sign of a parameter, in a scripted function."""

    def __init__(self) -> None:
        super().__init__()
        self.curvature = nn.Parameter(torch.tensor(-1.0))

    def forward(self, x: Tensor) -> Tensor:
        return scripted(x, self.curvature)  # type: ignore[no-any-return]


def test_a_branch_by_a_parameter(tmp_path: Path) -> None:
    proven(Curved().eval(), tmp_path / "b", example_inputs={"x": X}, lengths=[3])
    (output,) = posexport.load(tmp_path / "b").run({"x": X.numpy()}).values()
    agree(output, X.tanh(), "operator", np.float32)


class Offsets:
    """An object with a tensor, as the chain of an arm's joints."""

    def __init__(self) -> None:
        self.turn = torch.randn(D, D, generator=torch.Generator().manual_seed(0))


class ByObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.offsets = Offsets()

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.offsets.turn


def test_tensors_of_objects_are_wide_in_the_reference(tmp_path: Path) -> None:
    proven(ByObject().eval(), tmp_path / "b", example_inputs={"x": X}, lengths=[3])
    narrow, wide = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64)
    with computing_in(torch.float64):
        assert (wide @ narrow).dtype == torch.float64
        assert torch.cat([wide, narrow]).dtype == torch.float64
        with pytest.raises(RuntimeError):  # a copy of what is written to would lose it
            narrow.index_put_((torch.tensor([0]),), wide[0])


class OfFirstLength(nn.Module):
    """Keeps the table of its first call, and fails at longer ones."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(x.shape[1])[:, None] / 9
        return torch.cat([x, self.table[: x.shape[1]].expand(len(x), -1, -1)], -1)


def test_a_table_of_the_first_length(tmp_path: Path) -> None:
    proven(OfFirstLength().eval(), tmp_path / "b", example_inputs={"x": X}, lengths=[3, 5])


class Atoms(nn.Module):
    """A table for each column of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, D) for size in (50, 4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.tables[column](x[:, column]) for column in range(x.shape[1])]).sum(0)


def test_columns_with_tables(tmp_path: Path) -> None:
    ids = torch.tensor([[49, 3, 1], [7, 0, 0], [30, 2, 1], [5, 1, 0]])
    done = proven(Atoms().eval(), tmp_path / "b", example_inputs={"x": ids})
    assert done.manifest.inputs[0].axes == ["batch_size", 3]
    with pytest.raises(PosexportError, match="ids below"):
        posexport.load(tmp_path / "b").run({"x": np.array([[3, 49, 1]])})


class Spiking(nn.Module):
    """A neuron with a state, which it makes anew where that has not its input's shape."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(D, 7)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        current = self.project(x)
        if state.shape != current.shape:
            state = torch.zeros_like(current)
        return current + 0.9 * state


def test_a_state_is_read_in_its_shape_alone(tmp_path: Path) -> None:
    inputs = {"x": X[0], "state": torch.randn(9, 7)}
    done = proven(Spiking().eval(), tmp_path / "b", example_inputs=inputs)
    assert [spec.axes for spec in done.manifest.inputs] == [["batch_size", D], ["batch_size", 7]]


class Decisions(nn.Module):
    """Attention with a mask of real numbers, of which 1 is padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(D, 3 * D)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        return (q @ k.mT / D**0.5 - 10000 * attention_mask[:, None]).softmax(-1) @ v


def test_a_mask_of_real_numbers(tmp_path: Path) -> None:
    inputs = {"x": X, "attention_mask": torch.zeros(2, 9)}
    done = proven(Decisions().eval(), tmp_path / "b", example_inputs=inputs, lengths=[2, 7])
    mask = done.manifest.inputs[1]
    assert (mask.role, mask.dtype, mask.padding) == ("mask", "float32", 1)
    marked = torch.zeros(2, 9)
    marked[1, 6:] = 1
    (output,) = posexport.load(tmp_path / "b").run({"x": X.numpy(), "attention_mask": marked.numpy()}).values()
    agree(output[1, :6], Decisions()(X, marked)[1, :6], "model in float32", np.float32)
