"""A file of texts, one a line."""

import sys
from pathlib import Path

from posexport.errors import PosexportError

#: the name that stands for standard input
STDIN = Path("-")


def read_texts(path: Path) -> list[str]:
    """The lines of a file, or of standard input for ``-``, that are not empty; PosexportError if there are none."""
    name = "standard input" if path == STDIN else str(path)
    try:
        data = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        lines = [line.strip() for line in data.decode().splitlines()]
    except OSError as err:
        raise PosexportError(f"cannot read {name}: {err.strerror}; give a file of texts, one a line") from err
    except UnicodeDecodeError as err:
        raise PosexportError(f"{name} is no UTF-8 text (byte {err.start}: {err.reason}); give a text file") from err
    if not any(lines):
        raise PosexportError(f"{name} has no texts; give at least one, one a line")
    return [line for line in lines if line]
