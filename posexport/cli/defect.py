"""The report of a defect of posexport: one sentence, and a file with the traceback."""

import platform
import sys
import traceback

from posexport.base.system.files import aside
from posexport.version import VERSION


def report(err: BaseException) -> str:
    """The sentence; the traceback and the versions are in the file that it names."""
    message = " ".join(str(err).split())
    message = message if len(message) <= 200 else message[:200] + " ..."
    what = f"internal error, {type(err).__name__}" + (f": {message}" if message else "")
    lines = [f"posexport {VERSION}, Python {platform.python_version()}, {platform.platform()}"]
    lines += [f"arguments: {sys.argv[1:]}", "".join(traceback.format_exception(err))]
    path = aside("posexport-defect-", "\n".join(lines))
    if path is None:
        return f"{what}; this is a defect of posexport: please report it with the traceback (POSEXPORT_TRACEBACK=1)"
    return f"{what}; this is a defect of posexport: please report it with {path}, which holds the traceback"
