"""Decoders in whose masks there is more than causality: windows, blocks, ALiBi; with a KV cache where it has them."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.encodings import alibi
from posexport.errors import PosexportError
from posexport.options.recipe import CacheName
from posexport.parity.grid.point import GridPoint
from posexport.parity.references.own_forward import reference_of
from posexport.sources.prepare import with_kv_cache
from posexport.sources.source import Source
from posexport.spec import Padding
from tests.modules.test_plain_decoders import (
    IDS,
    C,
    Gqa,
    H,
    Llama,
    Opt,
    SelfAttention,
    Sliced,
    V,
    alone,
    example,
    source_of,
)
from tests.small import in_short
from tests.tolerances import agree


class Window(Llama):
    """Sees as many tokens as it is told, more than short inputs have."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, tokens: Tensor) -> Tensor:
        at = torch.arange(tokens.shape[1])
        distance = at[:, None] - at
        return self.through(tokens, (distance >= 0) & (distance < self.window))


class TensorWindow(Window):
    """The same, of a tensor."""

    def __init__(self, window: int) -> None:
        super().__init__(window)
        del self.window
        self.register_buffer("window", torch.tensor(window), persistent=False)


class OtherCalls(Window):
    """Another call where there are many tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) + (0 * tokens.cumsum(1)[..., None] if tokens.shape[1] > 99 else 0)


class Blocks(Window):
    """Blocks of tokens attend to themselves alone where the length is a multiple of them."""

    def forward(self, tokens: Tensor) -> Tensor:
        at = torch.arange(tokens.shape[1])
        size = tokens.shape[1] if tokens.shape[1] % self.window else self.window
        return self.through(tokens, (at <= at[:, None]) & (at // size == at[:, None] // size))


OTHER_LOGITS = r"Blocks: of 26 tokens its own forward gives other logits, from the 14th on, than with a KV cache"


@pytest.mark.all(but=("none", "ragged"))
@pytest.mark.parametrize(("padding", "good", "bad"), [("none", 25, 26), ("left", 36, 39), ("ragged", 13, 26)])
def test_the_users_own_forward_judges_the_decoder_made_of_it(padding: Padding, good: int, bad: int) -> None:
    source = source_of(Blocks(13))
    assert source.task == "text-generation"
    reference = reference_of(source, "fp32")
    reference.case(GridPoint(batch=3, length=good, padding=padding))
    with pytest.raises(PosexportError, match=OTHER_LOGITS):
        reference.case(GridPoint(batch=3, length=bad, padding=padding))


@pytest.mark.all
def test_what_its_own_forward_computes_otherwise_is_not_converted(tmp_path: Path) -> None:
    module = Blocks(13)
    with pytest.raises(PosexportError, match=f"{OTHER_LOGITS}.*convert it for the task features"):
        convert(module, tmp_path / "out", ConvertOptions(lengths=(25, 26), threads=1, example_inputs=example(module)))
    assert not (tmp_path / "out").exists()


class Third(Window):
    """A third of the tokens, as many as a short input has at least."""

    def forward(self, tokens: Tensor) -> Tensor:
        self.window = max(9, tokens.shape[1] // 3)
        return super().forward(tokens)


class ShortWindow(Window, Sliced):
    """The same, with a limit of length, which is sooner found."""


class WindowOfLast(ShortWindow):
    """The same, with logits of the last token."""

    def through(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        h, (cos, sin) = self.tok(tokens), self.angles(tokens.shape[1])
        for attention in self.attention:
            h = h + attention(h, cos, sin, mask)
        logits: Tensor = self.out(h[:, -1])
        return logits


def test_a_window_of_a_module_of_the_last_token_goes_with_the_cache() -> None:
    module = WindowOfLast(16)
    source = source_of(module)
    assert "in windows of 16 tokens" in source.remarks[-1]
    got = source.module(IDS.repeat(1, 3))[0][:, -1].detach()
    agree(got.numpy(), alone(module, IDS.repeat(1, 3)).numpy(), "attention", np.float32)
    reference_of(source, "fp32").case(GridPoint(batch=3, length=17, padding="ragged"))


class OneByHand(ShortWindow):
    """The second of two by hand, in a band of a table."""

    def __init__(self, window: int) -> None:
        super().__init__(window)
        self.attention[1] = Banded(window)


class Banded(Gqa):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, C // H)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        k, v = (y.repeat_interleave(H // self.KV, 1) for y in (k, v))
        T = x.shape[1]
        seen = torch.ones(T, T, dtype=torch.bool, device=x.device).tril().triu(1 - self.window // 2)
        y = (q @ k.mT / 3).masked_fill(~seen, -torch.inf).softmax(-1) @ v
        out: Tensor = self.wo(y.transpose(1, 2).flatten(2))
        return out


def agrees_in_parts(module: nn.Module, source: Source, cache: CacheName) -> None:
    """Rows of two lengths, read in three calls, have the logits of the module's own forward."""
    ids = torch.randint(0, V, (2, 31), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(31) >= torch.tensor([[0], [4]])).long()
    held = (
        [torch.full((2, source.outputs[1].axes[1], 33, C // H), torch.nan) for _ in range(4)]
        if cache == "static"
        else []
    )
    parts = []
    for start, end in ((0, 12), (12, 13), (13, 31)):
        logits, *held = source.module(ids[:, start:end], mask[:, :end], held)
        parts.append(logits.detach())
    got = torch.cat(parts, 1)
    agree(got[0].numpy(), alone(module, ids[:1])[0].numpy(), "attention", np.float32)
    agree(got[1, 4:].numpy(), alone(module, ids[1:, 4:])[0].numpy(), "attention", np.float32)


WINDOWED: dict[str, tuple[Callable[[], nn.Module], list[int]]] = {
    "of-four": (partial(ShortWindow, 4), [4, 4]),
    "of-sixteen": (partial(ShortWindow, 16), [16, 16]),
    "one-by-hand": (partial(OneByHand, 20), [20, 10]),
}


@pytest.mark.parametrize(
    ("name", "cache"),
    in_short(
        [(name, cache) for name in WINDOWED for cache in ("dynamic", "static")],
        lambda name, cache: (name, cache) in (("of-four", "dynamic"), ("one-by-hand", "static")),
    ),
)
def test_a_window_goes_with_the_cache(name: str, cache: CacheName) -> None:
    make, windows = WINDOWED[name]
    module = make()
    plain = source_of(module)
    assert f"2 of them in windows of {' and '.join(map(str, sorted(set(windows))))} tokens" in plain.remarks[-1]
    assert set(windows) <= set(plain.limits.boundaries)
    source = with_kv_cache(plain, cache, "at-write")
    assert [spec.parameters["left"] + 1 for spec in source.encodings or [source.encoding] * 2] == windows
    agrees_in_parts(module, source, cache)


def test_a_window_that_grows_with_the_length_has_no_cache() -> None:
    source = source_of(Third(0))
    assert re.search(r"sees 341 of 1025 tokens and 227 of 683: a window must have one size \(", source.remarks[-1])


class Linear(Sliced):
    """ALiBi as its authors write it, relative to the query."""

    def slopes(self) -> Tensor:
        return torch.tensor(alibi.slopes(H), dtype=self.freqs.dtype)[:, None, None]

    def forward(self, tokens: Tensor) -> Tensor:
        at = torch.arange(tokens.shape[1])
        bias = self.slopes() * (at - at[:, None])
        return self.through(tokens, bias.masked_fill(at > at[:, None], -torch.inf))


class ByKey(Linear):
    """BLOOM's, by the key's position, which softmax cannot tell from it."""

    def forward(self, tokens: Tensor) -> Tensor:
        T = tokens.shape[1]
        at = torch.arange(T)
        bias = (self.slopes() * at).expand(H, T, T)
        return self.through(tokens, bias.masked_fill(at > at[:, None], -torch.inf))


class Steeper(Linear):
    def slopes(self) -> Tensor:
        return super().slopes() * 1.1


class PenaltyByHand(SelfAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = torch.arange(q.shape[2])
        slopes = torch.tensor(alibi.slopes(H), dtype=torch.float32)[:, None, None]
        scores = q @ k.mT * 0.4 - slopes * (at[:, None] - at)
        return scores.masked_fill(at > at[:, None], -torch.inf).softmax(-1) @ v


ALIBI: dict[str, Callable[[], nn.Module]] = {
    "alibi": Linear,
    "alibi-by-key": ByKey,
    "alibi-by-hand": partial(Opt, PenaltyByHand),
}


@pytest.mark.parametrize(
    ("name", "cache"),
    in_short(
        [(name, cache) for name in ALIBI for cache in ("dynamic", "static")],
        lambda name, cache: (name, cache) in (("alibi-by-key", "static"), ("alibi-by-hand", "dynamic")),
    ),
)
def test_alibi_goes_with_the_cache(name: str, cache: CacheName) -> None:
    module = ALIBI[name]()
    plain = source_of(module)
    assert "2 causal attentions, 2 of them with ALiBi" in plain.remarks[-1]
    assert plain.encoding.name == "alibi"
    agrees_in_parts(module, with_kv_cache(plain, cache, "at-write"), cache)


def test_slopes_of_its_own_go_with_the_cache() -> None:
    plain = source_of(Steeper())
    assert "2 of them with ALiBi of the module's own slopes" in plain.remarks[-1]
    assert plain.encoding is None
    agrees_in_parts(Steeper(), with_kv_cache(plain, "static", "at-write"), "static")


@pytest.mark.all
def test_other_calls_in_long_inputs_leave_the_cache_out() -> None:
    source = source_of(OtherCalls(1 << 40))
    assert re.search(r"other calls at 1025 tokens than in short inputs \(test_plain_windows", source.remarks[-1])


@pytest.mark.parametrize(
    ("make", "window", "said"),
    [
        (Window, 5000, r"it compares with 5000, more tokens than are tried \(test_plain_windows.py line"),
        (TensorWindow, 5000, r"it compares with 5000, more tokens than are tried \(test_plain_windows.py line"),
    ],
)
def test_a_window_that_short_inputs_do_not_reach_is_seen(make: type[Window], window: int, said: str) -> None:
    source = source_of(make(window))
    assert source.task == "features"
    assert re.search(said, source.remarks[-1])
