"""Copies files of a checkpoint without absolute paths of this machine. Imports no torch."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

#: larger than any configuration; larger files are tables, for example a vocabulary
_CONFIGURATION_BYTES = 10_000_000
#: JSON files in which strings are tokens, not paths
_TABLES = ("tokenizer.json", "vocab.json", "added_tokens.json", "special_tokens_map.json")
#: an absolute path of at least two parts, or a path in a home directory
_PATH = re.compile(r"(?:file://)?(?:(?:/[^/\n]+){2,}/?|~[\w.-]*(?:/[^/\n]+)+/?|[A-Za-z]:[\\/][^\n]*|\\\\[^\n]+)")


def copy_without_paths(source: Path, copy: Path) -> None:
    """Copy a file; of a JSON configuration without the keys that hold an absolute path.

    Libraries write them (``_name_or_path``, ``tokenizer_file``). Other files are copied byte by byte.
    """
    if copy.suffix == ".json" and copy.name not in _TABLES and source.stat().st_size <= _CONFIGURATION_BYTES:
        try:
            content = json.loads(source.read_bytes())
        except (ValueError, RecursionError):
            content = None  # the reader of the file reports it
        cleaned = _without_paths(content)
        if cleaned != content:
            copy.write_text(json.dumps(cleaned, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            return
    shutil.copyfile(source, copy)


def _without_paths(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _without_paths(value) for key, value in content.items() if not _is_path(value)}
    return [_without_paths(item) for item in content] if isinstance(content, list) else content


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and _PATH.fullmatch(value) is not None
