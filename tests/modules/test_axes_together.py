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


class Named(Places):
    """The same with a text, of any length."""

    def forward(self, pixels: Tensor, input_ids: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"best": super().forward(pixels)["best"] * input_ids.float().sin().mean(1, keepdim=True)}


def test_a_text_beside_the_image_is_not() -> None:
    torch.manual_seed(0)
    example = {"pixels": torch.randn(2, 3, 24, 40), "input_ids": torch.randint(0, 9, (2, 11))}
    source = source_of_module("x", Named().eval(), example, {}, label="x", fingerprint=b"")
    assert source.limits.min_length == 1
    height, width = (source.limits.min_sizes[str(name)] for name in source.inputs[0].axes[2:])
    Places()(torch.zeros(1, 3, height, width))


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
