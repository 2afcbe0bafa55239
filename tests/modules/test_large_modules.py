"""Modules that are too large to be copied are called as seldom as that tells what must be known."""

import pytest
import torch
from torch import Tensor, nn

from posexport.base.spec import BATCH, SEQUENCE, InputSpec
from posexport.errors import PosexportError
from posexport.modules.drawn_calls import DrawnCalls
from posexport.modules.live_module import module_source
from posexport.sources import memory_mapped
from posexport.sources.example import example


class Counted(nn.Module):
    """Counts its calls in itself, and draws random numbers on request."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__()
        self.table, self.noise, self.calls = nn.Embedding(7, 4), noise, 0

    def forward(self, input_ids: Tensor) -> Tensor:
        self.calls += 1
        x: Tensor = self.table(input_ids)
        return x + self.noise * torch.rand_like(x)


def test_a_large_module_is_called_once_at_the_same_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_mapped, "LARGE", 0)
    module = Counted()
    inputs = [InputSpec(name="input_ids", dtype="int64", axes=[BATCH, SEQUENCE], role="tokens", size=7)]
    calls, sizes = DrawnCalls("it", module, inputs), {BATCH: 2, SEQUENCE: 5}
    first = calls.run(sizes)
    assert calls.run(dict(sizes)) is first
    assert module.calls == 1
    calls.run({**sizes, SEQUENCE: 6})
    calls.run(sizes, example(inputs, sizes))
    assert module.calls == 3


def test_random_numbers_of_a_large_module_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_mapped, "LARGE", 0)
    with pytest.raises(PosexportError, match="changes from call to call with the same inputs"):
        module_source(Counted(noise=0.1).eval(), (torch.zeros((2, 5), dtype=torch.int64),))
