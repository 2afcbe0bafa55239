"""A file of texts, one a line."""

from pathlib import Path

from posexport.errors import PosexportError


def read_texts(path: Path) -> list[str]:
    """The lines of a file that are not empty; PosexportError where there are none."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as err:
        raise PosexportError(f"cannot read {path}: {err.strerror}; give a file of texts, one a line") from err
    except UnicodeDecodeError as err:
        raise PosexportError(f"{path} is no UTF-8 text (byte {err.start}: {err.reason}); give a text file") from err
    if not any(lines):
        raise PosexportError(f"{path} has no texts; give at least one, one a line")
    return [line for line in lines if line]
