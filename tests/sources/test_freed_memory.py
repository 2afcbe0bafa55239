"""Memory of freed tensors goes back to the system inside the block."""

import subprocess
import sys

import pytest

#: half of the tensors are freed, each between two that stay; prints the bytes that this returned
_SCRIPT = """
import psutil, torch
from contextlib import nullcontext
from posexport.sources.freed_memory import returned_at_once

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
