"""An encoding of ours in the place of a submodule: told by its calls, compared in float64, converted and proven."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posexport
from posexport.encodings.alibi import Alibi
from posexport.encodings.t5 import T5
from posexport.graph.ops.biases import slopes
from posexport.modules.replaced.stand_ins import Added, Bias, Rotated, Rows, Waves
from posexport.run.bundle.read import read
from tests.modules.test_twelve_modules import loaded
from tests.small import in_short
from tests.tolerances import agree

V, D, H, END = 17, 24, 3, 40
IDS = {"ids": torch.arange(22).reshape(2, 11) % V}


class Reader(nn.Module):
    """One layer around the submodule ``at``, which a subclass uses in one of three places."""

    def __init__(self, at: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.qkv, self.at = nn.Embedding(V, D), nn.Linear(D, 3 * D), at

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedded(ids)
        q, k, v = (y.unflatten(-1, (H, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        q, k = self.rotated(q, k)
        y: Tensor = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(x))
        return x + y.transpose(1, 2).flatten(2)

    def embedded(self, ids: Tensor) -> Tensor:
        return self.token(ids)  # type: ignore[no-any-return]

    def rotated(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k

    def mask(self, x: Tensor) -> Tensor | None:
        return None


# -- submodules as users write them ------------------------------------------------------------------


class BiasOfLength(nn.Module):
    """ALiBi, [1, H, T, T] of a length."""

    def forward(self, length: int) -> Tensor:
        at = torch.arange(length)
        far = (at[None] - at[:, None]).abs()
        return -(torch.tensor(slopes(H))[:, None, None] * far)[None]


class BiasOfScores(BiasOfLength):
    """The same for every row, of scores."""

    def forward(self, scores: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(scores.shape[-1]).expand(scores.shape[0], -1, -1, -1)


class Angles(nn.Module):
    """Cosines and sines for positions [B, T], doubled as Llama's."""

    inv_freq: Tensor

    def __init__(self, base: float = 10000.0) -> None:
        super().__init__()
        self.register_buffer("inv_freq", base ** (-torch.arange(0, D // H, 2).float() / (D // H)))

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        freqs = position_ids[..., None].float() * self.inv_freq
        both = torch.cat((freqs, freqs), -1)[:, None]
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


class Rotary(Angles):
    """Queries and keys in one call, interleaved."""

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        freqs = torch.arange(q.shape[2])[:, None].float() * self.inv_freq
        return self.turned(q, freqs), self.turned(k, freqs)

    def turned(self, x: Tensor, freqs: Tensor) -> Tensor:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * freqs.cos() - b * freqs.sin(), b * freqs.cos() + a * freqs.sin()), -1).flatten(-2)


class Mixed(Rotary):
    """Pairs of halves, stored as interleaved ones."""

    def turned(self, x: Tensor, freqs: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.stack((a * freqs.cos() - b * freqs.sin(), b * freqs.cos() + a * freqs.sin()), -1).flatten(-2)


class Sinusoids(nn.Module):
    """PyTorch's tutorial: a buffer of float32, added."""

    def __init__(self) -> None:
        super().__init__()
        at = torch.arange(END).unsqueeze(1)
        term = torch.exp(torch.arange(0, D, 2) * (-math.log(10000.0) / D))
        table = torch.zeros(1, END, D)
        table[0, :, 0::2], table[0, :, 1::2] = torch.sin(at * term), torch.cos(at * term)
        self.register_buffer("pe", table)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[:, : x.size(1)]  # type: ignore[index]


class Table(nn.Module):
    """Rows of a parameter for tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, END, D))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight[:, : x.shape[1]]


class Biased(Reader):
    def mask(self, x: Tensor) -> Tensor:
        return self.at(x.shape[1])  # type: ignore[no-any-return]


class BiasedByScores(Reader):
    def mask(self, x: Tensor) -> Tensor:
        return self.at(x @ x.mT)  # type: ignore[no-any-return]


class ByAngles(Reader):
    def rotated(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.at(q, torch.arange(q.shape[2])[None])
        half = D // H // 2
        return tuple(x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin for x in (q, k))


class ByRotary(Reader):
    def rotated(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.at(q, k)  # type: ignore[no-any-return]


class Summed(Reader):
    def embedded(self, ids: Tensor) -> Tensor:
        return self.at(self.token(ids))  # type: ignore[no-any-return]


class RowsAdded(Reader):
    def embedded(self, ids: Tensor) -> Tensor:
        x = self.token(ids)
        return x + self.at(x)  # type: ignore[no-any-return]


class RowsOfIds(Reader):
    def embedded(self, ids: Tensor) -> Tensor:
        x = self.token(ids)
        return x + self.at(torch.arange(ids.shape[1]))  # type: ignore[no-any-return]


CASES: list[tuple[Callable[[], nn.Module], Any, type]] = [
    (lambda: Biased(BiasOfLength()), "alibi", Bias),
    (lambda: BiasedByScores(BiasOfScores()), Alibi(heads=H), Bias),
    (lambda: ByAngles(Angles(500.0)), ("rope", {"base": 500.0}), Waves),
    (lambda: ByRotary(Rotary()), ("rope", {"layout": "interleaved"}), Rotated),
    (lambda: Summed(Sinusoids()), "sinusoidal", Added),
    (lambda: RowsAdded(Table()), "learned", Rows),
    (lambda: RowsOfIds(nn.Embedding(END, D)), "learned", Rows),
]


@pytest.mark.parametrize(("make", "encoding", "kind"), in_short(CASES, lambda _make, _encoding, kind: kind is not Bias))
def test_the_same_values(make: Callable[[], nn.Module], encoding: Any, kind: type) -> None:
    module = make().train()
    before = module.at
    ours = posexport.replace(module, {"at": encoding}, IDS)
    assert module.at is before
    assert isinstance(ours.at, kind)
    assert ours.training
    with torch.no_grad():
        agree(ours(**IDS), module(**IDS), "model in float32", np.float32)


@pytest.mark.all
def test_a_table_is_taken_over_and_limits_the_length(tmp_path: Path) -> None:
    ours = posexport.replace(RowsOfIds(nn.Embedding(END, D)), {"at": "learned"}, IDS)
    done = posexport.convert(ours, tmp_path / "b", target="cpu", example_inputs=IDS, lengths=[1, END])
    assert done.good, done.to_text()
    manifest = read(tmp_path / "b")
    assert manifest.limits.max_length == END
    assert manifest.encoding is not None
    assert manifest.encoding.name == "learned"


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "at", "encoding"),
    in_short(
        [("alibi_encoder", "rel_pos", "alibi"), ("t5_bias_encoder", "position_*", "t5")], lambda name, *_: "t5" in name
    ),
)
def test_a_bias_is_attention_s_own(tmp_path: Path, name: str, at: str, encoding: str) -> None:
    model, inputs = loaded(f"{name}:make")
    ours = posexport.replace(model, {at: encoding}, inputs)
    done = posexport.convert(ours, tmp_path / "b", target="cpu", example_inputs=inputs, lengths=[1, 17], threads=1)
    assert done.good, done.to_text()
    manifest = read(tmp_path / "b")
    assert manifest.passes["position-bias"].nodes == 2
    assert {name: spec.nodes for name, spec in manifest.lowerings.items()} == {"PackedBiasedMaskedDistanceAttention": 2}


def test_a_change_on_purpose() -> None:
    module = RowsOfIds(nn.Embedding(END, D))
    other = {"at": ("sinusoidal", {"base": 500.0})}
    with pytest.raises(posexport.PosexportError, match=r"sinusoidal and at \(Embedding\) differ by .* at length 17"):
        posexport.replace(module, other, IDS)
    ours = posexport.replace(module, other, IDS, must_agree=False)
    assert isinstance(ours.at, Rows)
    assert ours.at.encoding.name == "sinusoidal"


@pytest.mark.all
def test_a_pattern_is_every_layer() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Biased(BiasOfLength()) for _ in range(2))

        def forward(self, ids: Tensor) -> Tensor:
            return self.layers[0](ids) + self.layers[1](ids)  # type: ignore[no-any-return]

    ours = posexport.replace(Two(), {"layers.*.at": "alibi"}, IDS)
    assert [type(layer.at) for layer in ours.layers] == [Bias, Bias]  # type: ignore[union-attr]


# -- nearly so ---------------------------------------------------------------------------------------


class WrongSlope(BiasOfLength):
    def forward(self, length: int) -> Tensor:
        return super().forward(length) * torch.tensor([1.0, 1.0, 1.0001])[:, None, None]


class LateBuckets(nn.Module):
    """A bucket that begins one token later than T5's, beyond 64 tokens."""

    def __init__(self, late: int = 1) -> None:
        super().__init__()
        self.table, self.edges = nn.Embedding(32, H), T5(heads=H).edges
        self.edges[-1] += late

    def forward(self, length: int) -> Tensor:
        at = torch.arange(length)
        far = at[None] - at[:, None]
        rows = (far.abs()[..., None] >= torch.tensor(self.edges)).sum(-1) + 16 * (far > 0)
        return self.table(rows).permute(2, 0, 1)  # type: ignore[no-any-return]


@pytest.mark.all
def test_buckets_are_t5_s() -> None:
    posexport.replace(Biased(LateBuckets(0)), {"at": "t5"}, IDS)


@pytest.mark.parametrize(
    ("module", "encoding", "said"),
    in_short(
        [
            (Biased(WrongSlope()), "alibi", "alibi and at (WrongSlope) differ by 0.0004 at length 17"),
            (Biased(LateBuckets()), "t5", "at length 150"),
            (ByRotary(Mixed()), "rope", "rope and at (Mixed) differ by"),
            (ByRotary(Mixed()), ("rope", {"layout": "interleaved"}), "differ by"),
            (Biased(BiasOfLength()), Alibi(heads=H, variant="causal"), "or must_agree=False to change the model"),
            (Biased(BiasOfLength()), "t5", "t5 and at (BiasOfLength) differ by"),
            (Biased(BiasOfLength()), "learned", "is called with 17 and returns [1, 3, 17, 17]; learned stands in"),
            (Biased(BiasOfLength()), "relative-key", "reads queries or keys; put posexport.nn.Attention"),
            (Biased(BiasOfLength()), "nope", "nope acts through nothing"),
            (Biased(BiasOfLength()), 3, "must stand an encoding"),
            (Summed(Sinusoids()), "mpnet", "mpnet acts through embed and scores"),
        ],
        lambda module, encoding, _said: not isinstance(module, Biased) or encoding == "learned",
    ),
)
def test_what_differs_is_said(module: nn.Module, encoding: Any, said: str) -> None:
    with pytest.raises(posexport.PosexportError) as refused:
        posexport.replace(module, {"at": encoding}, IDS)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("encodings", "said"),
    [
        ({"att": "alibi"}, "has no submodule 'att'; did you mean at?"),
        ({"a*": "alibi", "at": "alibi"}, "is meant by both 'a*' and 'at'"),
        ({}, "needs a mapping from names of submodules"),
        ({"unused": "alibi"}, "unused (Linear) is never called"),
    ],
)
def test_names_that_do_not_fit(encodings: dict[str, str], said: str) -> None:
    module = Biased(BiasOfLength())
    module.unused = nn.Linear(2, 2)
    with pytest.raises(posexport.PosexportError) as refused:
        posexport.replace(module, encodings, IDS)
    assert said in str(refused.value)
