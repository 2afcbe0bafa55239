"""How the command line ends: one sentence on stderr and an exit code, with --json a document too.

Imports no package, so that Ctrl-C during any import ends like this.
"""

import os
import sys
from typing import NoReturn


def end(sentence: str, code: int = 2) -> NoReturn:
    # a quoted message of a library may have several lines
    line = " ".join(part.strip() for part in sentence.splitlines())
    if os.environ.get("POSEXPORT_TRACEBACK", "0") not in ("", "0") and sys.exc_info()[0] is not None:
        import traceback

        traceback.print_exc()
    print(f"posexport: {line}", file=sys.stderr, flush=True)  # noqa: T201
    print_json(line, code)
    sys.exit(code)


def print_json(sentence: str, code: int) -> None:
    """With --json stdout holds one document whatever happens."""
    if "--json" in sys.argv[1:]:
        import json

        print(json.dumps({"error": sentence, "exit_code": code}), flush=True)  # noqa: T201


def end_interrupted() -> NoReturn:
    # CPython ends by the signal, in place of the exit code, where the interruption left code in a text, such as the
    # methods of a dataclass; the next such code makes it forget
    exec("")
    end("interrupted; what was there before is unchanged", 130)


def is_interruption(err: BaseException | None) -> bool:
    """Whether Ctrl-C caused an error: an extension module that is interrupted raises ImportError from it."""
    while err is not None:
        if isinstance(err, KeyboardInterrupt):
            return True
        err = err.__cause__ or err.__context__
    return False
