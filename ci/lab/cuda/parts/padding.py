"""What ``--unpad`` is worth: milliseconds with and without it, of rows that are half padding and of full ones.

Linear layers run on real tokens only, attention on all. It is left off by default until this has run on a card.
"""

import statistics
import time
from typing import Any

import numpy as np
from bundles import case_of, converted, first, ids, opened
from part import Part, Row, Setup

#: rows and tokens of each
SIZE, LITTLE = (16, 512), (2, 64)
#: share of tokens that are padding
SHARES = (0.5, 0.0)
RUNS = 20
#: values of both may differ by so many eps of float16, relative to the largest
TOLERANCE = 64


def cases(setup: Setup) -> list[str]:
    """Models with another attention each."""
    from cases import UNPADS

    return setup.few([f"{name} fp16" for name in UNPADS], "encoder-t5 fp16")


def run(name: str, setup: Setup) -> Row:
    """Values of real tokens, and the time, with padding in and left out."""
    row: Row = {}
    notes = []
    for share in SHARES:
        outputs, times = {}, {}
        for form in ("", " unpadded"):
            with converted(case_of(name + form), setup) as bundle:
                outputs[form], times[form] = _called(opened(bundle, setup), share, setup)
        wanted, got = outputs[""], outputs[" unpadded"]
        error = float(np.abs(wanted - got).max() / np.abs(wanted).max())
        if not error <= TOLERANCE * np.finfo(np.float16).eps:
            notes.append(f"values differ by {error:.2g} of the largest where {share:.0%} are padding")
        row[f"{share:.0%} padding"] = {"ms": times, "error": error}
    return {"passed": not notes, "note": "; ".join(notes), **row}


def _called(session: Any, share: float, setup: Setup) -> tuple[Any, float]:
    """The output at real tokens in float32, and milliseconds of a call, the median."""
    batch, length = LITTLE if setup.rehearsal else SIZE
    feeds, output = ids(session, batch, length), first(session)
    (mask,) = [spec.name for spec in session.inputs if spec.role == "mask"]
    real = np.arange(length) < np.full((batch, 1), round(length * (1 - share)))
    feeds[mask] = real.astype(np.int64)
    taken = []
    for _ in range(3 if setup.rehearsal else RUNS):
        begin = time.perf_counter()
        result = session.run(feeds, outputs=[output])[output]
        taken.append(1e3 * (time.perf_counter() - begin))
    return np.asarray(result, np.float32)[real], round(statistics.median(taken), 3)


PART = Part("padding", "what --unpad is worth", cases, run, alone=True)
