"""The time of calls before and after, interleaved in one process."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

from posexport.inspect.audit.calls.calls import Calls
from posexport.inspect.audit.calls.inputs import Call
from posexport.inspect.bench.measurement import InProcess, SamplingBudget, interleave
from posexport.inspect.optimize.record import Times
from posexport.run.providers import make_session

#: tokens of the calls that are timed
_LENGTHS = (8, 128, 512)
_BUDGET = SamplingBudget(warmup=3, runs=60, least=5, seconds=6.0)


def measured(original: Calls, output: Path) -> Iterator[Times]:
    """Times of calls that the file computes, on one thread."""
    before, after = (make_session(path, threads=1) for path in (original.subject.path, output))
    lengths = _LENGTHS if original.inputs.has("tokens") else original.lengths[-1:]
    for length in lengths:
        call = Call(((1, length),))
        if not original(call):
            continue
        feeds = original.inputs.feeds(call)
        first, second = (InProcess(partial(each.run, None, feeds), _BUDGET.warmup) for each in (before, after))
        times = interleave(second, first, _BUDGET)
        ratio = median(times.ratios)
        yield Times(str(call), median(times.ms) / ratio, median(times.ms), ratio)
