"""Sizes that a module refuses although calls with the example in other sizes did not show it."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.modules.live_module import module_source
from tests.small import proven


class Labelled(nn.Module):
    """Rows [T, B, D], the first of which have labels [S, B, L]: there are not more labels than rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.labels = nn.Linear(16, 24), nn.Linear(24 + 8, 24)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.rows(x)
        return torch.cat([self.labels(torch.cat([h[: y.shape[0]], y], -1)), h[y.shape[0] :]])


class Squeezed(nn.Module):
    """Weights of pairs of tokens, whose axes are lost where there is one token: a row alone does not show it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 24)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.atleast_1d((x @ x.mT).squeeze())
        return (weights @ self.linear(x)).reshape(x.shape[0], -1, 24)


class Skips(nn.Module):
    """A skip between two strides, which sizes fit that are few: twice the frames must be all samples but one."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv1d(3, 8, 7, 4, padding=3), nn.ConvTranspose1d(8, 8, 7, 4, padding=3)
        self.skip = nn.Conv1d(3, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] > 140:
            x = F.pad(x, (0, 1))
        return self.up(self.down(x)) + self.skip(x)


def test_fewer_labels_than_rows(tmp_path: Path) -> None:
    done = proven(Labelled(), tmp_path / "b", example_inputs=(torch.randn(13, 2, 16), torch.randn(7, 2, 8)))
    assert done.manifest is not None
    assert [spec.axes[0] for spec in done.manifest.inputs] == ["sequence_length", 7]
    assert any("encoder_sequence_length has the example's size in the bundle, 7" in text for text in done.remarks)


def test_at_least_two_tokens(tmp_path: Path) -> None:
    done = proven(Squeezed(), tmp_path / "b", example_inputs=(torch.randn(2, 9, 16),))
    assert done.manifest is not None
    assert done.manifest.limits.min_length == 2
    assert any("sequence_length is at least 2: the module raised" in text for text in done.remarks)


def test_one_size_of_few() -> None:
    source = module_source(Skips().eval(), {"x": torch.randn(2, 3, 133)})
    assert source.inputs[0].axes == ["batch_size", 3, 133]
