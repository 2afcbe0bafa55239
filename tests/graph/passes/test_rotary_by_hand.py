"""Rotary embeddings as users write them: ours where pairs are rotated by angles of positions; else left, and right."""

from pathlib import Path

import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.options.recipe import CacheName
from posexport.graph.ops.rotation import RotationSpec
from posexport.graph.passes.graph_pass import PassResult
from tests.small import after_recognition, in_short, proven

V, D, H = 17, 48, 4
IDS = torch.arange(22).reshape(2, 11) % V


class Halves(nn.Module):
    """Two layers of a decoder, queries and keys rotated as in Llama."""

    channels = D // H
    tokens_first = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        self.qkv = nn.ModuleList(nn.Linear(D, 3 * D) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(D, D) for _ in range(2))
        at = self.angles(torch.arange(200))
        self.table: Tensor
        self.register_buffer("table", torch.stack((at.cos(), at.sin()), -1), persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.token(input_ids)
        angles = self.tables(x.shape[1])
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = (y.unflatten(-1, (H, -1)) for y in qkv(x).chunk(3, -1))
            if not self.tokens_first:
                q, k = q.transpose(1, 2), k.transpose(1, 2)
            q, k = self.rotate(q, *angles), self.rotate(k, *angles)
            if self.tokens_first:
                q, k = q.transpose(1, 2), k.transpose(1, 2)
            y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
            x = x + out(y.transpose(1, 2).flatten(2))
        return self.head(x)  # type: ignore[no-any-return]

    def angles(self, at: Tensor) -> Tensor:
        return at[:, None].float() / 10000 ** (torch.arange(0, self.channels, 2) / self.channels)

    def tables(self, length: int) -> tuple[Tensor, ...]:
        angles = self.angles(torch.arange(length))
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    def turned(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + self.turned(x) * sin


class Interleaved(Halves):
    """As in GPT-J."""

    def tables(self, length: int) -> tuple[Tensor, ...]:
        angles = self.angles(torch.arange(length)).repeat_interleave(2, dim=-1)
        return angles.cos(), angles.sin()

    def turned(self, x: Tensor) -> Tensor:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


class Partial(Halves):
    """As in GPT-NeoX: the first channels of a head."""

    channels = 8

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return torch.cat((super().rotate(x[..., :8], cos, sin), x[..., 8:]), -1)


class Chunks(Halves):
    """Cosines of half of the channels, from a table."""

    def tables(self, length: int) -> tuple[Tensor, ...]:
        table = self.table[:length]
        return table[..., 0], table[..., 1]

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Signed(Chunks):
    """Sums alone: the sine has either sign."""

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos + b * (-sin), b * cos + a * sin), -1)


class Inverse(Halves):
    """Sines of the other sign alone: rotated the other way."""

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + self.turned(x) * (-sin)


class Complex(Halves):
    """As in the first Llama: heads behind tokens, pairs as complex numbers."""

    tokens_first = True

    def tables(self, length: int) -> tuple[Tensor, ...]:
        angles = self.angles(torch.arange(length))
        return (torch.polar(torch.ones_like(angles), angles).view(1, length, 1, -1),)

    def rotate(self, x: Tensor, *tables: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * tables[0]).flatten(3).type_as(x)


RECOGNISED: dict[type[Halves], str] = {
    Halves: "rotary, halves, 12 of 12 channels",
    Interleaved: "rotary, interleaved, 12 of 12 channels",
    Partial: "rotary, halves, 8 of 12 channels",
    Chunks: "rotary, halves, 12 of 12 channels",
    Signed: "rotary, halves, 12 of 12 channels",
    Inverse: "rotary, halves, 12 of 12 channels",
    Complex: "rotary, interleaved, 12 of 12 channels",
}


def traced(model: Halves) -> tuple[ir.Model, PassResult]:
    graph, results = after_recognition(model, {"input_ids": IDS}, 23)
    return graph, results["rotary"]


@pytest.mark.all(but=("Signed",))
@pytest.mark.parametrize("model", in_short(RECOGNISED, lambda model: model in (Partial, Signed)))
def test_it_is_a_rotation(model: type[Halves]) -> None:
    graph, result = traced(model())
    specs = [spec for node in graph.graph if (spec := RotationSpec.of(node))]
    assert result == PassResult(4, (), (RECOGNISED[model],))
    layout = "interleaved" if "interleaved" in RECOGNISED[model] else "half"
    assert specs == [RotationSpec(layout, partial=model is Partial, shared=True)] * 4
    # what it was written with is gone: nothing but one projection a layer is taken apart
    assert any(node.op_type == "Neg" for node in graph.graph) is (model is Inverse)
    assert sum(node.op_type == "Split" for node in graph.graph) == 2


CASES = [(model, target, "dynamic") for model in RECOGNISED for target in ("cpu", "portable", "cuda")]


@pytest.mark.all
@pytest.mark.parametrize(("model", "target", "cache"), [*CASES, (Halves, "cpu", "static"), (Complex, "cpu", "static")])
def test_it_is_right_with_a_cache(tmp_path: Path, model: type[Halves], target: str, cache: CacheName) -> None:
    manifest = proven(
        model(), tmp_path / "b", target=target, cache=cache, lengths=(1, 17, 150), example_inputs={"input_ids": IDS}
    ).manifest
    assert manifest.task == "text-generation"
    assert manifest.passes["rotary"].recognised == [RECOGNISED[model]]
    assert manifest.passes["rotary"].nodes == 4


# -- nearly so ---------------------------------------------------------------------------------------


class Mixed(Halves):
    """Halves are turned by the angles of interleaved pairs."""

    tables = Interleaved.tables


class WrongSign(Halves):
    """Neither half is subtracted."""

    def turned(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((b, a), -1)


class OtherPositions(Halves):
    """Sines of the next positions."""

    def tables(self, length: int) -> tuple[Tensor, ...]:
        at = torch.arange(length)
        return tuple(torch.cat((x, x), -1) for x in (self.angles(at).cos(), self.angles(at + 1).sin()))


class OfTokens(Halves):
    """Angles that depend on the tokens."""

    def forward(self, input_ids: Tensor) -> Tensor:
        self.ids = input_ids
        return super().forward(input_ids)

    def tables(self, length: int) -> tuple[Tensor, ...]:
        angles = self.angles(torch.arange(length)) * self.ids[:, None, :, None]
        angles = torch.cat((angles, angles), -1)
        return angles.cos(), angles.sin()


NOT_OURS: dict[type[Halves], tuple[str, ...]] = {
    Mixed: ("its cosines and sines differ within the pairs of channels that it rotates",),
    WrongSign: ("what multiplies its channels by positions rotates no pairs, in halves or interleaved",),
    OtherPositions: ("its cosines and sines are not those of the same angles",),
    OfTokens: (),
}


@pytest.mark.all
@pytest.mark.parametrize("model", in_short(NOT_OURS, lambda model: model is Mixed))
def test_what_is_nearly_so_is_left(model: type[Halves]) -> None:
    graph, result = traced(model())
    assert result == PassResult(0, NOT_OURS[model], ())
    assert not any(RotationSpec.of(node) for node in graph.graph)


@pytest.mark.all
@pytest.mark.parametrize("model", [Mixed, WrongSign, OtherPositions])
def test_what_is_left_is_right(tmp_path: Path, model: type[Halves]) -> None:
    proven(
        model(), tmp_path / "b", target="cpu", lengths=(1, 17, 150), example_inputs={"input_ids": IDS}, task="features"
    )
