"""How the command line ends: one sentence on stderr and an exit code, with --json a document too.

Imports no package, so that Ctrl-C during any import ends like this.
"""

import os
import sys
from typing import NoReturn


def end(sentence: str, code: int = 2) -> NoReturn:
    """Print ``sentence`` and exit with ``code``."""
    # the message of a library may have several lines
    line = " ".join(part.strip() for part in sentence.splitlines())
    if os.environ.get("POSEXPORT_TRACEBACK", "0") not in ("", "0") and sys.exc_info()[0] is not None:
        import traceback

        traceback.print_exc()
    print(f"posexport: {line}", file=sys.stderr, flush=True)  # noqa: T201
    print_json(line, code)
    sys.exit(code)


def print_json(sentence: str, code: int) -> None:
    """Print the error as the JSON document of ``--json``."""
    if "--json" in sys.argv[1:]:
        import json

        print(json.dumps({"error": sentence, "exit_code": code}), flush=True)  # noqa: T201


def end_interrupted() -> NoReturn:
    """Exit as after Ctrl-C, with code 130."""
    # CPython exits by the signal, not with the exit code, after an interruption of exec(str), which dataclasses call;
    # the next exec(str) resets that
    exec("")
    end("interrupted; what was there before is unchanged", 130)


def is_interruption(err: BaseException | None) -> bool:
    """Whether Ctrl-C caused an error: an extension module that is interrupted raises ImportError from it."""
    seen: set[int] = set()  # a chain of contexts may be a ring
    while err is not None and id(err) not in seen:
        if isinstance(err, KeyboardInterrupt):
            return True
        seen.add(id(err))
        err = err.__cause__ or err.__context__
    return False
