"""Shaw's tables that are read by padding and reshaping, as VITS, Piper and Glow-TTS do."""

from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.graph.ops.attention import AttentionSpec
from tests.in_float64 import is_the_module
from tests.small import TwoLayers, after_recognition, in_short, proven

V, C, H = 61, 20, 5
IDS = torch.arange(22).reshape(2, 11) % V
INPUTS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


class GlowTts(TwoLayers):
    """Rows [2T - 1, D] of tables with zeros beyond the window."""

    window = 2

    def __init__(self) -> None:
        super().__init__(C, gain=2)
        self.keys, self.values = (nn.Parameter(torch.randn(1, 2 * self.window + 1, C // H) * 2) for _ in range(2))

    def rows(self, table: Tensor, length: int) -> Tensor:
        pad, start = max(length - (self.window + 1), 0), max((self.window + 1) - length, 0)
        if pad > 0:
            table = F.pad(table, (0, 0, pad, pad, 0, 0))
        return table[:, start : start + 2 * length - 1]

    def absolute(self, x: Tensor) -> Tensor:
        length = x.shape[-2]
        x = F.pad(F.pad(x, (0, 1)).flatten(-2), (0, length - 1))
        return x.unflatten(-1, (length + 1, 2 * length - 1))[..., :length, length - 1 :]

    def relative(self, x: Tensor) -> Tensor:
        length = x.shape[-1]
        x = F.pad(F.pad(x, (0, length - 1)).flatten(-2), (length, 0))
        return x.unflatten(-1, (length, 2 * length))[..., 1:]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        length, pairs = q.shape[2], mask[:, None, None] * mask[:, None, :, None]
        scores = q / 2 @ k.mT + self.absolute(q / 2 @ self.rows(self.keys, length).unsqueeze(0).mT)
        probs = scores.masked_fill(pairs == 0, -1e4).softmax(-1)
        return probs @ v + self.relative(probs) @ self.rows(self.values, length).unsqueeze(0)


class Vits(GlowTts):
    """Heads in the batch, and a mask that is added with heads apart, as in transformers."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        batch, _, length, _ = q.shape
        q, k, v = (x.reshape(batch * H, -1, C // H) for x in (q * 0.5, k, v))
        scores = torch.bmm(q, k.mT)
        scores += self.absolute(q @ self.rows(self.keys, length).mT)
        dropped = (1 - mask[:, None, None].to(q.dtype)) * torch.finfo(q.dtype).min
        scores = scores.view(batch, H, length, length) + dropped
        probs = scores.view(batch * H, length, length).softmax(-1)
        context = torch.bmm(probs, v)
        context += self.relative(probs) @ self.rows(self.values, length)
        return context.view(batch, H, length, -1)


class KeysAlone(GlowTts):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.mT + self.absolute(q @ self.rows(self.keys, q.shape[2])[0].mT)) / 2
        return scores.masked_fill(mask[:, None, None] == 0, -1e4).softmax(-1) @ v


class OneOff(GlowTts):
    """The window begins one row late."""

    def rows(self, table: Tensor, length: int) -> Tensor:
        pad, start = max(length - self.window, 0), max(self.window - length, 0)
        return F.pad(table, (0, 0, pad, pad))[:, start : start + 2 * length - 1]


class OtherSide(GlowTts):
    """The products are padded in front."""

    def absolute(self, x: Tensor) -> Tensor:
        length = x.shape[-2]
        x = F.pad(F.pad(x, (1, 0)).flatten(-2), (length - 1, 0))
        return x.unflatten(-1, (length + 1, 2 * length - 1))[..., :length, length - 1 :]


class Repeated(GlowTts):
    """The last rows are repeated beyond the window."""

    def rows(self, table: Tensor, length: int) -> Tensor:
        at = torch.arange(1 - length, length).clamp(-self.window, self.window) + self.window
        return table[:, at]


class Halved(GlowTts):
    """Half of the values' term is added."""

    def relative(self, x: Tensor) -> Tensor:
        return super().relative(x) / 2


RECOGNISED: dict[type[GlowTts], tuple[str | None, str | None]] = {
    GlowTts: ("ClippedScores", "ClippedValues"),
    Vits: ("ClippedScores", "ClippedValues"),
    KeysAlone: ("ClippedScores", None),
}
LEFT = (OneOff, OtherSide, Repeated, Halved)


def traced(model: type[GlowTts]) -> Counter[object]:
    graph, _ = after_recognition(model(), INPUTS, 18)
    specs = [spec for node in graph.graph if (spec := AttentionSpec.of(node))]
    return Counter((spec.scores, spec.values) for spec in specs)


@pytest.mark.parametrize("model", in_short(RECOGNISED, lambda model: model is Vits))
def test_tables_are_recognised(model: type[GlowTts]) -> None:
    assert traced(model) == {RECOGNISED[model]: 2}


@pytest.mark.parametrize("model", in_short(LEFT, lambda model: model is OneOff))
def test_what_is_nearly_so_is_left(model: type[GlowTts]) -> None:
    assert not any(values for _, values in traced(model))


@pytest.mark.all
@pytest.mark.parametrize(
    ("model", "target"),
    [(model, target) for model in (*RECOGNISED, *LEFT) for target in ("portable", "cpu") if model is not Halved],
)
def test_they_are_right_at_every_length(tmp_path: Path, model: type[GlowTts], target: str) -> None:
    module = model().eval()
    proven(module, tmp_path / "b", target=target, lengths=(1, 2, 3, 4, 17), example_inputs=INPUTS, threads=1)
    is_the_module(tmp_path / "b", module, V, (1, 2, 3, 5, 13, 67))
