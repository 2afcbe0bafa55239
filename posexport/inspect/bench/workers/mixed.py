"""Measures the memory of a session after batches of mixed sizes, as in a service.

The argument is a `Mixed` as JSON; it prints a line of JSON, bytes of resident memory.
"""

import json
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import posexport
from posexport.base.spec import SEQUENCE
from posexport.base.targets.providers import DEFAULT_PROVIDER
from posexport.inspect.bench.workers.memory import resident
from posexport.run.batches import BATCH_TOKENS
from posexport.run.wrapped_session import DEFAULT_MEMORY, Memory

#: rows and tokens of the largest batch
ROWS, LONGEST = 64, 512


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """``calls`` batches of up to `ROWS` rows of up to `LONGEST` tokens; ``cut``: in calls of few tokens."""

    bundle: str
    calls: int
    threads: int = 0
    provider: str = DEFAULT_PROVIDER
    provider_options: dict[str, Any] = field(default_factory=dict)
    memory: Memory = DEFAULT_MEMORY
    cut: bool = False


def held(job: Mixed) -> dict[str, int]:
    """Bytes before the first call, after the last one, and at most between two."""
    session = posexport.load(
        job.bundle,
        threads=job.threads,
        provider=job.provider,
        provider_options=job.provider_options,
        memory=job.memory,
    )
    rng, limits = np.random.default_rng(0), session.manifest.limits
    tokens = next(spec for spec in session.inputs if spec.role == "tokens")
    mask = next((spec.name for spec in session.inputs if spec.role == "mask" and SEQUENCE in spec.axes), None)
    least = max(limits.min_length, 1)
    longest = min(LONGEST, limits.max_length or LONGEST)
    loaded = most = resident()
    for _ in range(job.calls):
        lengths = rng.integers(least, rng.integers(least, longest + 1) + 1, rng.integers(1, ROWS + 1))
        while len(lengths):
            count = max(BATCH_TOKENS // int(lengths.max()), 1) if job.cut else len(lengths)
            real = (np.arange(lengths[:count].max()) < lengths[:count, None]).astype(np.int64)
            lengths = lengths[count:]
            ids = rng.integers(0, tokens.size or 2, real.shape)
            session.run({tokens.name: ids} | ({} if mask is None else {mask: real}))
        most = max(most, resident())
    return {"loaded": loaded, "held": resident(), "most": most}


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(held(Mixed(**json.loads(sys.argv[1]))))}\n")
