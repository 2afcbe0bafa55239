"""Modules that refuse integers of another type than the example's."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posexport
from posexport.errors import PosexportError
from tests.small import proven
from tests.tolerances import agree


class Frames(nn.Module):
    """A value for each frame [B, T, 6, 8, 3] of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(144, 16)

    def forward(self, frames: Tensor) -> Tensor:
        assert frames.dtype == torch.uint8
        result: Tensor = self.linear(frames.flatten(2).float().div_(255))
        return result


def test_frames_of_bytes(tmp_path: Path) -> None:
    module, frames = Frames().eval(), torch.randint(0, 255, (2, 9, 6, 8, 3), dtype=torch.uint8)
    proven(module, tmp_path / "b", example_inputs={"frames": frames})
    session = posexport.load(tmp_path / "b")
    assert [(spec.dtype, spec.size) for spec in session.inputs] == [("int64", 256)]
    more = torch.randint(0, 256, (3, 4, 6, 8, 3), dtype=torch.uint8)
    (got,) = session.run({"frames": more.numpy().astype(np.int64)}).values()
    agree(got, module(more).detach().numpy(), "model in float32", dtype="float32")
    with pytest.raises(PosexportError, match="it takes ids from 0 to 255"):
        session.run({"frames": np.full((1, 2, 6, 8, 3), 256)})
