"""How messages cite a user's code: the line that an exception passed, and the exception itself.

Code is the user's where its file is no part of Python, of PyTorch, ONNX and their like, or of posexport: a module of an
installed package is cited as the user's files are, with the line of the user that called it.
"""

import linecache
import re
import traceback
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

#: characters of an exception's message that are quoted
_QUOTED = 300
#: folders that packages are installed in
_INSTALLED = ("site-packages", "dist-packages")
_POSEXPORT = Path(__file__).resolve().parents[2]
#: installed packages that run a module, and are no part of it
_TOOLS = frozenset(
    [
        "torch",
        "torchgen",
        "functorch",
        "numpy",
        "sympy",
        "onnx",
        "onnxscript",
        "onnx_ir",
        "onnxruntime",
        "einops",
        "einx",
    ]
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@lru_cache(maxsize=4096)  # asked for every frame of a trace
def is_user_file(filename: str) -> bool:
    """Whether a file may hold a line of a user's module: it is no part of Python, of `_TOOLS` or of posexport."""
    path = Path(filename)
    if filename.startswith("<") or not path.is_file():
        return False
    standard = Path(linecache.__file__).resolve().parent
    resolved = path.resolve()
    if resolved.is_relative_to(_POSEXPORT):
        return False
    package = _package(resolved)
    if package is not None:
        return package.parts[0] not in _TOOLS
    return not resolved.is_relative_to(standard)


def scope_of(module: ModuleType) -> dict[str, Any]:
    """The globals of a module of ``sys.modules``, which may be lazy: asking it for an attribute would load it."""
    scope: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return scope


def is_user_module(module: ModuleType) -> bool:
    """Whether a module's file may be the user's (`is_user_file`)."""
    return is_user_file(scope_of(module).get("__file__") or "")


def is_installed(module: ModuleType) -> bool:
    """Whether a module's file is of Python, of posexport or of an installed package."""
    file = scope_of(module).get("__file__") or ""
    return bool(file) and (_package(Path(file)) is not None or not is_user_file(file))


def _package(path: Path) -> Path | None:
    """The path of an installed package's file below the folder of packages; None for other files."""
    places = [number for number, part in enumerate(path.parts) if part in _INSTALLED]
    return Path(*path.parts[places[-1] + 1 :]) if places else None


def package_called(err: BaseException) -> str:
    """The installed package that posexport called when it raised ``err``; empty where posexport raised it itself."""
    files = [Path(frame.f_code.co_filename).resolve() for frame, _ in traceback.walk_tb(err.__traceback__)]
    last = max((at for at, file in enumerate(files) if file.is_relative_to(_POSEXPORT)), default=-1)
    package = _package(files[last + 1]) if last + 1 < len(files) else None
    return "" if package is None else package.parts[0]


def cite(filename: str, number: int) -> str:
    """A line as a person would cite it: ``model.py line 12: `x + bias```, ``package/mlp.py line 9: ...``."""
    text = linecache.getline(filename, number).strip()
    name = _package(Path(filename).resolve()) or Path(filename).name
    return f"{name} line {number}" + (f": `{text}`" if text else "")


def _innermost(lines: Sequence[tuple[str, int]]) -> str:
    """The innermost of the lines that led to something, outermost first; and the user's that called a package's."""
    if not lines:
        return ""
    files = [line for line in lines if _package(Path(line[0]).resolve()) is None]
    called = f", called from {cite(*files[-1])}" if files and files[-1] != lines[-1] else ""
    return cite(*lines[-1]) + called


def line_of_error(err: BaseException) -> str:
    """The user's innermost line that an exception, its cause or its context passed; empty where there is none."""
    seen: list[BaseException] = []
    current: BaseException | None = err
    lines: list[tuple[str, int]] = []
    while current is not None and current not in seen:
        seen.append(current)
        passed = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(current.__traceback__)]
        lines = [line for line in passed if is_user_file(line[0])] or lines
        current = current.__cause__ or _context(current)
    return _innermost(lines)


def _context(err: BaseException) -> BaseException | None:
    """The exception that was handled when ``err`` was raised; None where the user's own code had caught that one."""
    context = err.__context__
    frames = [] if context is None else list(traceback.walk_tb(context.__traceback__))
    return None if frames and is_user_file(frames[0][0].f_code.co_filename) else context


def line_of_frame(frame: FrameType | None, outside: FrameType | None = None) -> str:
    """The user's innermost line of a call that runs; empty where there is none before the frame ``outside``."""
    lines: list[tuple[str, int]] = []
    while frame is not None and frame is not outside:
        if is_user_file(frame.f_code.co_filename):
            lines.insert(0, (frame.f_code.co_filename, frame.f_lineno))
            if _package(Path(frame.f_code.co_filename).resolve()) is None:
                break
        frame = frame.f_back
    return _innermost(lines)


def line_of_trace(stack: str) -> str:
    """The user's innermost line in a stack that PyTorch stored as text; empty where there is none."""
    return _innermost([(file, int(number)) for file, number in _FRAME.findall(stack) if is_user_file(file)])


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
