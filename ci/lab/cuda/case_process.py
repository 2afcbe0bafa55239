"""Runs cases of a part: ``case_process.py PART [--rehearse]`` reads their names and answers JSON, a line each.

A process of its own, for what one case leaves behind on a device must not reach another part.
"""

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

    from posexport.runtime.providers import quiet

    quiet()
    part = BY_NAME[sys.argv[1]]
    setup = part.setup("--rehearse" in sys.argv)
    for line in sys.stdin:
        begin = time.perf_counter()
        try:
            row: dict[str, Any] = part.run(line.rstrip("\n"), setup)
        except Exception as err:  # noqa: BLE001  # a case that raises has failed, and the next one runs
            where = traceback.extract_tb(err.__traceback__)[-1]
            said = " ".join(str(err).split())[:500]
            row = {"passed": False, "note": f"{type(err).__name__}: {said} ({where.filename}:{where.lineno})"}
        row["seconds"] = round(time.perf_counter() - begin, 1)
        answers.write(json.dumps(row, default=str) + "\n")
        answers.flush()
    os._exit(0)  # the stand-in has no destructors


if __name__ == "__main__":
    main()
