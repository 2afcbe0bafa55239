"""Calls that are captured as CUDA graphs: the same bits as other calls, for other inputs too, and how much faster."""

import statistics
import time
from typing import Any

from bundles import case_of, converted, first, ids, opened, same
from part import Part, Row, Setup

CALLS = 20


def cases(setup: Setup) -> list[str]:
    """Encoders that the dry run says can be captured."""
    from cases import TELLING

    found = [f"encoder-{name} {p}" for p in ("fp16", "fp32") for name in (*TELLING, "absolute", "sinusoidal")]
    return setup.few(found, "encoder-nope fp16", "encoder-t5 fp16")


def run(name: str, setup: Setup) -> Row:
    """Two shapes in turn, each with inputs that change."""
    with converted(case_of(name), setup) as bundle:
        plain, captured = opened(bundle, setup), opened(bundle, setup, provider_options={"graph": True})
        output, wrong, ms = first(plain), [], {}
        for seed in range(3):
            for length in (64, 128, 513):
                feeds = ids(plain, 1, length, seed)
                answers = [s.run(feeds, outputs=[output])[output] for s in (plain, captured)]
                # the rehearsal's stand-ins compute nothing: what lies in memory is no answer
                if not setup.rehearsal and not same(*answers):
                    wrong.append(f"{length} tokens, call {seed}")
        for length in (128, 513):
            feeds = ids(plain, 1, length)
            ms[length] = [median_ms(session, feeds, output) for session in (plain, captured)]
    note = f"other bits than without a graph: {', '.join(wrong)}" if wrong else ""
    return {"passed": not wrong, "note": note, "ms: plain, captured": ms}


def median_ms(session: Any, feeds: dict[str, Any], output: str) -> float:
    times = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        session.run(feeds, outputs=[output])
        times.append(1e3 * (time.perf_counter() - begin))
    return round(statistics.median(times), 3)


PART = Part("graphs", "CUDA graphs: the same bits, and how much faster", cases, run, alone=True, stubs=True)
