"""Outputs as packages return them, named as their inputs are; and modules that hold what cannot be copied."""

import copy
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posexport
from posexport.base.spec import BATCH
from posexport.errors import PosexportError
from posexport.modules.copied import copied
from posexport.modules.live_module import module_source
from posexport.modules.returned import named_outputs, names_beside
from posexport.proof.criterion import measure
from tests.small import proven
from tests.tolerances import agree

D = 12
X = torch.randn(2, 9, D, generator=torch.Generator().manual_seed(0))


class ByAttributes:
    """Tensors as attributes, as an autoencoder returns a distribution."""

    def __init__(self, mean: Tensor) -> None:
        self.mean, self.parts, self.deterministic, self._cached = mean, [mean + 1, None], False, mean


class Declared:
    """As attrs makes a class with slots."""

    __slots__ = ("pooled", "states")
    __attrs_attrs__ = (SimpleNamespace(name="states"), SimpleNamespace(name="pooled"))

    def __init__(self, states: Tensor, pooled: Tensor | None = None) -> None:
        self.states, self.pooled = states, pooled


class Denoiser(nn.Module):
    """Its output has the name of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(D, D)

    def forward(self, sample: Tensor) -> dict[str, Tensor]:
        return {"sample": self.project(sample).sigmoid()}


def test_tensors_are_read_from_attributes() -> None:
    answer = {"posterior": ByAttributes(X), "encoder": Declared(X)}
    assert list(named_outputs(answer)) == ["posterior.mean", "posterior.parts.0", "encoder.states"]


def test_an_object_without_tensors_is_refused() -> None:
    with pytest.raises(PosexportError, match="dataclasses and objects, got SimpleNamespace"):
        named_outputs(SimpleNamespace(size=3))


class Flattened(nn.Module):
    """Its rows and tokens are one axis, as of a router."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(D, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x + x.cumsum(1)).flatten(0, 1)


def test_rows_and_tokens_may_be_one_axis(tmp_path: Path) -> None:
    done = proven(Flattened().eval(), tmp_path / "b", example_inputs={"x": X}, lengths=[1, 17])
    assert done.manifest.outputs[0].axes == ["output_axis_0_batch_rows", 5]


class WithZeros(nn.Module):
    """Beside its outputs a location that is zero, as of a scaler that only scales."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(D, D)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scaled": self.project(x), "location": torch.zeros_like(x[:, :1])}


def test_an_output_of_zeros_is_compared_beside_others(tmp_path: Path) -> None:
    done = proven(WithZeros().eval(), tmp_path / "b", example_inputs={"x": X}, lengths=[1, 7])
    assert any("location: zero for all inputs" in remark for remark in done.remarks)
    assert posexport.load(tmp_path / "b").self_check()


def test_zeros_are_right_where_they_are_zeros() -> None:
    zeros, axes = np.zeros((2, 3)), [BATCH, 3]
    assert measure(zeros, zeros, axes, None) == (0, 0, "")
    assert measure(zeros + 1e-9, zeros, axes, None).error == np.inf
    assert measure(zeros[:, :0], zeros[:, :0], axes, None) == (0, 0, "")
    assert measure(zeros[:, :0].astype(int), zeros[:, :0].astype(int), axes, None) == (0, 0, "")
    assert measure(zeros, zeros[:, :0], axes, None).error == np.inf


class Deviations(nn.Module):
    """From the mean of all tokens: of one token zero."""

    def forward(self, features: Tensor) -> Tensor:
        return features - features.mean(1, keepdim=True)


class Nothing(nn.Module):
    """Zero everywhere."""

    def forward(self, features: Tensor) -> Tensor:
        return features * 0.0


def test_what_is_zero_of_one_token_alone_is_proven(tmp_path: Path) -> None:
    proven(Deviations().eval(), tmp_path / "b", example_inputs={"features": X}, lengths=[1, 7])
    assert posexport.load(tmp_path / "b").self_check()


@pytest.mark.parametrize(("module", "lengths"), [(Nothing(), [1, 7]), (Deviations(), [1])])
def test_zeros_alone_prove_nothing(module: nn.Module, lengths: list[int], tmp_path: Path) -> None:
    done = posexport.convert(module.eval(), tmp_path / "b", example_inputs={"features": X}, lengths=lengths)
    assert not done.good
    assert {point.note for point in done.report.points} == {"the float64 reference is all zero"}


def test_an_output_beside_an_input_of_its_name_gets_another(tmp_path: Path) -> None:
    done = proven(Denoiser().eval(), tmp_path / "b", example_inputs={"sample": X}, lengths=[5], threads=1)
    assert "output sample is called sample_out: an input has its name" in done.remarks
    assert list(posexport.load(tmp_path / "b").run({"sample": X.numpy()})) == ["sample_out"]


def test_a_new_name_is_free() -> None:
    names = names_beside(["x", "y"], ["x", "x_out", "y", "z"])
    assert names == {"x": "x_out_out", "x_out": "x_out", "y": "y_out", "z": "z"}


class Held(nn.Module):
    """Holds a lock, a staticmethod with a closure, a module of Python and a tensor with a history of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.project, inner = nn.Linear(D, D), nn.Linear(D, D)
        self.inner, self.settings = inner, {"lock": threading.RLock(), "seen": [0]}
        self.feed, self.functions = staticmethod(lambda x: inner(x)), F
        self.doubled = self.project.weight * 2

    def forward(self, x: Tensor) -> Tensor:
        with self.settings["lock"]:
            return self.functions.linear(self.feed(self.project(x)), self.doubled)


def test_what_cannot_be_copied_is_shared(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Held().eval()
    with pytest.raises((TypeError, RuntimeError)):
        copy.deepcopy(module)
    before, expected = {n: t.clone() for n, t in module.state_dict().items()}, module(X)
    proven(module, tmp_path / "b", example_inputs={"x": X}, lengths=[5], threads=1)
    (output,) = posexport.load(tmp_path / "b").run({"x": X.numpy()}).values()
    agree(output, expected, "model in float32", np.float32)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.dtype == torch.float32 for parameter in module.parameters())


def test_a_copy_shares_no_weights() -> None:
    module = Held()
    other = copied("held", module).double()
    assert other.feed(X.double()).dtype == torch.float64
    assert module.feed(X).dtype == torch.float32
    assert other.settings["seen"] is not module.settings["seen"]


def test_hooks_call_the_copies_of_submodules() -> None:
    """As of compressed-tensors: a rotation before a layer is a submodule that only a hook calls."""
    layer = nn.Linear(D, D)
    turn = layer.turn = nn.Linear(D, D)
    layer.register_forward_pre_hook(lambda _, given: turn(given[0]))
    layer.register_forward_hook(lambda _, _given, output: turn(output))
    expected = layer(X)
    agree(copied("layer", layer).double()(X.double()), expected, "model in float32", np.float32)


class Forbids(nn.Module):
    """Its author allows no copies."""

    def __deepcopy__(self, memo: object) -> "Forbids":
        raise NotImplementedError("make a new one")

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_a_module_that_forbids_copies_is_refused() -> None:
    with pytest.raises(PosexportError, match=r"cannot be copied.*make a new one"):
        module_source(nn.Sequential(Forbids()).eval(), {"x": X})


class CountsByGenerator(nn.Module):
    """State in an object that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.numbers = nn.Linear(D, D), iter_of_numbers()

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x) + next(self.numbers)  # type: ignore[no-any-return]


def iter_of_numbers():  # type: ignore[no-untyped-def]
    number = 0
    while True:
        yield number
        number += 1


def test_state_that_is_shared_shows_in_calls() -> None:
    with pytest.raises(PosexportError, match="changes from call to call"):
        module_source(CountsByGenerator().eval(), {"x": X})
