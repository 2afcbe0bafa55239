"""The memory that each candidate holds after batches of mixed sizes."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from posexport.tools.bench.candidate import Candidate
from posexport.tools.bench.measurement import Conditions
from posexport.tools.bench.processes import FailedError, run
from posexport.tools.bench.records import Held
from posexport.tools.bench.workers.mixed import Mixed

#: batches of one candidate
CALLS = 200


def held(
    candidates: Sequence[Candidate],
    conditions: Conditions,
    calls: int = CALLS,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> list[Held]:
    """A fresh process for each."""
    found = []
    for number, candidate in enumerate(candidates):
        progress(number, len(candidates), f"mixed batches, {candidate.name}")
        bundle = str(Path(candidate.model).parent)
        job = Mixed(
            bundle=bundle,
            calls=calls,
            threads=conditions.threads,
            provider=conditions.provider,
            provider_options=dict(conditions.provider_options),
        )
        try:
            ended = run("posexport.tools.bench.workers.mixed", [json.dumps(asdict(job))])
        except FailedError as err:
            found.append(Held(candidate=candidate.name, calls=calls, failed=str(err)))
            continue
        found.append(Held(candidate=candidate.name, calls=calls, **json.loads(ended.output.splitlines()[-1])))
    return found
