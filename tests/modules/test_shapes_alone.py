"""Calls of shapes alone: what is computed, and what is not."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from posexport.modules.axes.shapes_alone import ShapesAlone


def recurrence(x: Tensor, decay: Tensor, weight: Tensor) -> Tensor:
    state = torch.zeros_like(x[:, 0])
    states = []
    for step in range(x.shape[1]):
        state = x[:, step] + decay * state
        states.append(torch.matmul(state.unsqueeze(1), weight).to(x.dtype))
    return torch.cat(states, 1)


def test_steps_of_a_recurrence_are_computed_without_a_look_at_their_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[torch.Size] = []
    look = FakeTensorMode.from_tensor

    def counted(mode: FakeTensorMode, tensor: Tensor) -> FakeTensor:
        looks.append(tensor.shape)
        return look(mode, tensor)

    monkeypatch.setattr(FakeTensorMode, "from_tensor", counted)
    x, decay, weight = torch.randn(2, 20, 6), torch.rand(6), torch.randn(2, 6, 5)
    with ShapesAlone():
        y = recurrence(x, decay, weight)
    assert torch.equal(y, recurrence(x, decay, weight))
    # zeros and cat, whose results may be larger than what they are made of
    assert len(looks) < 40, looks


@pytest.mark.parametrize("op", ["outer sum", "product", "expanded"])
def test_large_tensors_have_no_values(op: str) -> None:
    x = torch.ones(1 << 12)
    with ShapesAlone():
        if op == "outer sum":
            y = x + x[:, None]
        elif op == "product":
            y = x[:, None] @ x[None]
        else:
            y = x.expand(1 << 12, -1)
    assert isinstance(y, FakeTensor)
    assert y.shape == (1 << 12, 1 << 12)
