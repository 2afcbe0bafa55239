"""Decoders in whose masks there is more than causality: windows, blocks, ALiBi; with a KV cache where it has them."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.graph.ops import biases
from tests.modules.test_plain_decoders import (
    C,
    Gqa,
    H,
    Llama,
    Opt,
    SelfAttention,
    Sliced,
    example,
    source_of,
)
from tests.small import in_short


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


class CutWindow(Window):
    """The same, cut from a square of ones."""

    def forward(self, tokens: Tensor) -> Tensor:
        ones = torch.ones(tokens.shape[1], tokens.shape[1])
        return self.through(tokens, ones.tril().triu(1 - self.window) > 0)


class Blocks(Window):
    """Blocks of tokens attend to themselves alone where the length is a multiple of them."""

    def forward(self, tokens: Tensor) -> Tensor:
        at = torch.arange(tokens.shape[1])
        size = tokens.shape[1] if tokens.shape[1] % self.window else self.window
        return self.through(tokens, (at <= at[:, None]) & (at // size == at[:, None] // size))


@pytest.mark.all
def test_the_way_of_other_lengths_is_told_and_not_taken(tmp_path: Path) -> None:
    """Blocks at multiples of 13 alone: the graph has one of the two ways, and takes no length of the other."""
    module = Blocks(13)
    options = partial(ConvertOptions, threads=1, example_inputs=example(module))
    done = convert(module, tmp_path / "out", options(lengths=(13, 26)))
    assert {(point.length, point.verdict) for point in done.report.points} >= {(13, "pass"), (26, "pass")}
    assert any("sequence_length must be a multiple of 13" in remark for remark in done.remarks)
    with pytest.raises(PosexportError, match="length 25 cannot be compared: it must be a multiple of 13"):
        convert(module, tmp_path / "other", options(lengths=(25, 26)))
    assert not (tmp_path / "other").exists()


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
    assert "in windows of 16 tokens" in source_of(WindowOfLast(16)).remarks[-1]


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


WINDOWED: dict[str, tuple[Callable[[], nn.Module], list[int]]] = {
    "of-four": (partial(ShortWindow, 4), [4, 4]),
    "of-sixteen": (partial(ShortWindow, 16), [16, 16]),
    "one-by-hand": (partial(OneByHand, 20), [20, 10]),
}


@pytest.mark.parametrize("name", in_short(WINDOWED, lambda name: name == "one-by-hand"))
def test_a_window_goes_with_the_cache(name: str) -> None:
    make, windows = WINDOWED[name]
    source = source_of(make())
    assert f"2 of them in windows of {' and '.join(map(str, sorted(set(windows))))} tokens" in source.remarks[-1]
    assert set(windows) <= set(source.limits.boundaries)
    assert [spec.parameters["left"] + 1 for spec in source.encodings or [source.encoding] * 2] == windows


@pytest.mark.all
def test_a_window_that_grows_with_the_length_has_no_cache() -> None:
    source = source_of(Third(0))
    assert re.search(r"a row of its mask depends on how many tokens a call has \(", source.remarks[-1])


class Linear(Sliced):
    """ALiBi as its authors write it, relative to the query."""

    def slopes(self) -> Tensor:
        return torch.tensor(biases.slopes(H), dtype=self.freqs.dtype)[:, None, None]

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
        slopes = torch.tensor(biases.slopes(H), dtype=torch.float32)[:, None, None]
        scores = q @ k.mT * 0.4 - slopes * (at[:, None] - at)
        return scores.masked_fill(at > at[:, None], -torch.inf).softmax(-1) @ v


ALIBI: dict[str, Callable[[], nn.Module]] = {
    "alibi": Linear,
    "alibi-by-key": ByKey,
    "alibi-by-hand": partial(Opt, PenaltyByHand),
}


@pytest.mark.parametrize("name", in_short(ALIBI, lambda name: name == "alibi-by-hand"))
def test_alibi_goes_with_the_cache(name: str) -> None:
    source = source_of(ALIBI[name]())
    assert "2 causal attentions, 2 of them with ALiBi;" in source.remarks[-1]
    assert source.encoding is not None
    assert source.encoding.name == "alibi"


@pytest.mark.all
def test_slopes_of_its_own_go_with_the_cache() -> None:
    source = source_of(Steeper())
    assert "2 of them with ALiBi of the module's own slopes" in source.remarks[-1]
    assert source.encoding is None


@pytest.mark.parametrize(
    ("make", "task", "said"),
    [
        pytest.param(Window, "text-generation", "2 of them in windows of 5000 tokens", marks=pytest.mark.all),
        (TensorWindow, "text-generation", "2 of them in windows of 5000 tokens"),
        pytest.param(CutWindow, "features", "its mask has a number or a table beyond the 301", marks=pytest.mark.all),
    ],
)
def test_a_window_that_short_inputs_do_not_reach_is_seen(make: type[Window], task: str, said: str) -> None:
    source = source_of(make(5000))
    assert source.task == task
    assert re.search(said, source.remarks[-1])
