"""Runs cases: ``case_process.py [--rehearse]`` reads lines of ``PART: CASE`` and answers JSON, a line each."""

import json
import os
import sys
import time
import traceback
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    from parts import BY_NAME

    from posexport.run.providers import quiet

    quiet()
    for line in sys.stdin:
        name, _, case = line.rstrip("\n").partition(": ")
        part = BY_NAME[name]
        begin = time.perf_counter()
        try:
            row: dict[str, Any] = part.run(case, part.setup("--rehearse" in sys.argv))
        except Exception as err:  # noqa: BLE001  # a case that raises has failed, and the next one runs
            last = traceback.extract_tb(err.__traceback__)[-1]
            where = f"{os.path.relpath(last.filename)}:{last.lineno}"
            said = " ".join(str(err).split())[:500]
            row = {"passed": False, "note": f"{type(err).__name__}: {said} ({where})"}
        row["seconds"] = round(time.perf_counter() - begin, 1)
        answers.write(json.dumps(row, default=str) + "\n")
        answers.flush()
    os._exit(0)  # the stand-in has no destructors


if __name__ == "__main__":
    main()
