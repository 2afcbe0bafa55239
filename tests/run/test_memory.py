"""What a session keeps of a large call: nothing where memory is flat, and all of it where calls are to be fast."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import posexport
from posexport.errors import PosexportError
from posexport.inspect.bench.workers.mixed import Mixed, held
from posexport.run.wrapped_session import LARGE, MemoryPolicy

MB = 1e6


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "bundle"
    posexport.convert("encoder-nope", path, settings={"layers": 1, "hidden": 60}, verify=False)
    return path


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_call_leaves_nothing_behind(bundle: Path) -> None:
    ids = np.ones((48, 512), np.int64)
    grew = {}
    for memory in ("flat", "fast"):
        session = posexport.load(bundle, threads=1, memory=memory)  # type: ignore[arg-type]
        session.run({"input_ids": ids[:1, :8]})
        before = resident()
        session.run({"input_ids": ids})
        grew[memory] = (resident() - before) / MB
    assert grew["fast"] > 100, "the call is too small to show anything"
    assert grew["flat"] < 0.2 * grew["fast"]


def test_the_benchmark_of_mixed_batches_sees_it(bundle: Path) -> None:
    found = {
        memory: held(Mixed(bundle=str(bundle), calls=4, threads=1, memory=memory))  # type: ignore[arg-type]
        for memory in ("flat", "fast")
    }
    grew = {memory: (each["held"] - each["loaded"]) / MB for memory, each in found.items()}
    assert grew["fast"] > 50, "the batches are too small to show anything"
    assert grew["flat"] < 0.5 * grew["fast"]


def test_only_large_calls_give_back() -> None:
    tokens = np.zeros((1, LARGE), np.int64)
    images = np.zeros((8, 3, 224, 224), np.float32)
    assert MemoryPolicy("flat").options([tokens]) is None
    assert MemoryPolicy("flat").options([tokens, images]) is not None
    assert MemoryPolicy("flat").options([np.zeros((1, LARGE + 1), np.int64)]) is not None
    assert MemoryPolicy("fast").options([images]) is None


def test_another_word_is_refused(bundle: Path) -> None:
    with pytest.raises(PosexportError, match="memory must be one of flat, fast, got 'small'"):
        posexport.load(bundle, memory="small")  # type: ignore[arg-type]
