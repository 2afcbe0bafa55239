"""Reads files of a checkpoint directory, and none outside it.

Symbolic links are followed only to files of the directory itself or, in a Hugging Face cache
(``models--<name>/snapshots/<revision>/<file>``), to the ``blobs`` of the same entry.
"""

import errno
import json
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from posexport.errors import PosexportError

#: Real configurations and shard indices stay far below; a tokenizer's tables are not read as JSON here.
JSON_BYTES = 10_000_000
JSON_DEPTH = 32


class Directory:
    """A directory that the user names. Raises PosexportError when it is missing, or not a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise PosexportError(f"{path} does not exist: give a directory with config.json and model.safetensors")
        if not path.is_dir():
            raise PosexportError(f"{path} is not a directory: give one with config.json and model.safetensors")
        self._root = path.resolve()
        self._allowed = [self._root]
        entry = next((parent for parent in self._root.parents if parent.name.startswith("models--")), None)
        if entry is not None and self._root.relative_to(entry).parts[0] == "snapshots":
            self._allowed.append(entry / "blobs")

    def find(self, name: str) -> Path | None:
        """The regular file ``name`` (``/`` between parts), or None where there is none.

        Raises PosexportError for a name or a link that leads outside, a broken link, and anything but a regular file.
        """
        parts = PurePosixPath(name).parts
        if (
            not parts
            or ".." in parts
            or PurePosixPath(name).is_absolute()
            or PureWindowsPath(name).anchor
            or "\\" in name
        ):
            raise PosexportError(f"{self.path}: {name!r} points outside the directory; only files inside are read")
        path = self._root.joinpath(*parts)
        try:
            if not path.is_symlink() and not path.exists():
                return None
            target = path.resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as err:
            # a circle of links is a RuntimeError up to Python 3.12
            if isinstance(err, OSError) and err.errno not in (errno.ENOENT, errno.ELOOP):
                raise PosexportError(f"{self.path}/{name} cannot be read: {err.strerror}") from err
            raise PosexportError(f"{self.path}/{name} is a link that leads nowhere: download the file again") from err
        if not any(target.is_relative_to(allowed) for allowed in self._allowed):
            raise PosexportError(
                f"{self.path}/{name} is a link that leaves the directory, to {target}; replace it with the file itself"
            )
        if not target.is_file():
            raise PosexportError(f"{self.path}/{name} is not a regular file; it must be one to be read")
        return target

    def json(self, name: str) -> Any:
        """The content of a JSON file that must be there, limited in size and depth."""
        path = self.find(name)
        if path is None:
            hint = "config.json" if name == "config.json" else f"the {name} that it refers to"
            cache = "; this is a cache entry, give a directory below its snapshots/" if self._is_entry() else ""
            raise PosexportError(f"{self.path} has no {name}: a checkpoint needs {hint}{cache}")
        label = f"{self.path}/{name}"
        if (size := path.stat().st_size) > JSON_BYTES:
            raise PosexportError(f"{label} has {size} bytes, more than the {JSON_BYTES} a configuration may have")
        try:
            content = json.loads(path.read_bytes(), parse_constant=_no_constant)
        except RecursionError as err:
            raise PosexportError(f"{label} is nested deeper than {JSON_DEPTH} levels; no configuration is") from err
        except ValueError as err:
            raise PosexportError(f"{label} is not valid JSON ({err}): download it again") from err
        except OSError as err:
            raise PosexportError(f"{label} cannot be read: {err.strerror}") from err
        if _deeper(content, JSON_DEPTH):
            raise PosexportError(f"{label} is nested deeper than {JSON_DEPTH} levels; no configuration is")
        return content

    def _is_entry(self) -> bool:
        return (self._root / "snapshots").is_dir()


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not a JSON number")


def _deeper(content: Any, limit: int) -> bool:
    level = [content]
    for _ in range(limit):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
    return bool(level)
