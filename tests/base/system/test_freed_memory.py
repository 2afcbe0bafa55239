"""Memory of freed tensors goes back to the system inside the block."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from posexport.base.system import freed_memory

#: half of the tensors are freed, each between two that stay; prints the bytes that this returned
_SCRIPT = """
import psutil, torch
from contextlib import nullcontext
from posexport.base.system.freed_memory import returned_at_once

taken = lambda: psutil.Process().memory_info().rss
torch.ones(7 << 20)  # a block of 28 MB, after which glibc takes smaller ones from its pool
with {block}:
    tensors = [torch.ones(2 << 20) for _ in range(20)]
    before = taken()
    del tensors[::2]
    print(before - taken())
with nullcontext():  # the pool again
    tensors = [torch.ones(2 << 20) for _ in range(20)]
    before = taken()
    del tensors[::2]
    print(before - taken())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's option")
def test_freed_tensors_between_others_are_returned() -> None:
    def returned(block: str) -> list[int]:
        script = _SCRIPT.format(block=block)
        return [int(line) for line in subprocess.check_output([sys.executable, "-c", script], text=True).split()]

    half = 10 * (8 << 20)
    inside, after = returned("returned_at_once()")
    assert inside > 0.9 * half
    assert after < 0.5 * half  # as by default
    assert returned("nullcontext()")[0] < 0.5 * half


def test_freed_memory_is_returned_once_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, trimmed = iter([200, 200, 250, 400, 300, 420]), []
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=next(sizes) << 20))
    monkeypatch.setattr(freed_memory, "_after_trim", [0])
    monkeypatch.setattr(freed_memory.psutil, "Process", lambda: process)
    monkeypatch.setattr(freed_memory, "trim", lambda: trimmed.append(True))
    counts = []
    for _ in range(4):
        freed_memory.trim_grown()
        counts.append(len(trimmed))
    assert counts == [1, 1, 2, 2]
