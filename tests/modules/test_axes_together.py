"""Least sizes of axes that a module does not accept together: a low image must be wide."""

import torch
from torch import Tensor, nn

from posexport.modules.live_module import source_of_module


class Places(nn.Module):
    """The best 20 of the places of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, 1, 4, 4)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        return {"best": self.project(pixels).flatten(1).topk(20, 1).values}


def test_they_are_raised_together() -> None:
    torch.manual_seed(0)
    source = source_of_module(
        "x", Places().eval(), {"pixels": torch.randn(2, 3, 24, 40)}, {}, label="x", fingerprint=b""
    )
    least, steps = source.limits.min_sizes, source.limits.size_steps
    names = source.inputs[0].axes[2:]
    height, width = (least.get(str(name), steps.get(str(name), 1)) for name in names)
    assert (height // 4) * (width // 4) >= 20
    assert (height, width) < (24, 40)
    Places()(torch.zeros(1, 3, height, width))
