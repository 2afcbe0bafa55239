"""How messages cite a user's code: the line that an exception passed, and the exception itself.

Code is the user's where its file is no part of Python, of an installed package or of posexport.
"""

import linecache
import re
from pathlib import Path
from types import FrameType

#: characters of an exception's message that are quoted
_QUOTED = 300
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def is_user_file(filename: str) -> bool:
    """Whether a file is no part of Python, of an installed package or of posexport."""
    path = Path(filename)
    if filename.startswith("<") or not path.is_file():
        return False
    posexport = Path(__file__).resolve().parent.parent
    standard = Path(linecache.__file__).resolve().parent
    resolved = path.resolve()
    if resolved.is_relative_to(posexport) or {"site-packages", "dist-packages"} & set(resolved.parts):
        return False
    return not resolved.is_relative_to(standard)


def cite(filename: str, number: int) -> str:
    """A line of a file as a person would cite it: ``model.py line 12: `x + bias```."""
    text = linecache.getline(filename, number).strip()
    return f"{Path(filename).name} line {number}" + (f": `{text}`" if text else "")


def line_of_error(err: BaseException) -> str:
    """The user's innermost line that an exception, its cause or its context passed; empty where there is none."""
    seen: list[BaseException] = []
    current: BaseException | None = err
    line = ""
    while current is not None and current not in seen:
        seen.append(current)
        trace = current.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if is_user_file(code.co_filename):
                line = cite(code.co_filename, trace.tb_lineno)
            trace = trace.tb_next
        current = current.__cause__ or current.__context__
    return line


def line_of_frame(frame: FrameType | None, outside: FrameType | None = None) -> str:
    """The user's innermost line of a call that runs; empty where there is none before the frame ``outside``."""
    while frame is not None and frame is not outside and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None or frame is outside else cite(frame.f_code.co_filename, frame.f_lineno)


def line_of_trace(stack: str) -> str:
    """The user's innermost line in a stack that PyTorch stored as text; empty where there is none."""
    users = [(file, int(number)) for file, number in _FRAME.findall(stack) if is_user_file(file)]
    return cite(*users[-1]) if users else ""


def raised(err: BaseException) -> str:
    """An exception as the user wrote it: ``ValueError('too long')``."""
    text = quoted(err)
    return f"{type(err).__name__}({text!r})" if text else type(err).__name__


def quoted(err: BaseException) -> str:
    """An exception's message on one line, shortened where it is long."""
    try:
        text = " ".join(str(err).split())
    except Exception:  # noqa: BLE001 (its __str__ is the user's as well)
        return ""
    return text if len(text) <= _QUOTED else text[:_QUOTED] + " ..."


def is_external(err: BaseException) -> bool:
    """Whether the machine or the person caused an exception, not the user's code: no memory, a signal, Ctrl-C."""
    if isinstance(err, SystemExit):  # the exit code of a signal is 128 and the signal's number
        return isinstance(err.code, int) and err.code > 128
    return isinstance(err, KeyboardInterrupt | MemoryError) or "can't allocate memory" in raised(err)
