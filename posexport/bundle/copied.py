"""Copies of a checkpoint's files that say nothing of the machine that the checkpoint lay on. Imports no torch."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

#: above every configuration; what is larger is a table, such as a vocabulary
_CONFIGURATION_BYTES = 10_000_000
#: files of JSON whose strings are tokens
_TABLES = ("tokenizer.json", "vocab.json", "added_tokens.json", "special_tokens_map.json")
#: the whole text is an absolute path, of at least two parts, or one of a home directory
_PATH = re.compile(r"(?:file://)?(?:(?:/[^/\n]+){2,}/?|~[\w.-]*(?:/[^/\n]+)+/?|[A-Za-z]:[\\/][^\n]*|\\\\[^\n]+)")


def copy_without_paths(source: Path, copy: Path) -> None:
    """Copy a file; from a configuration in JSON, such as config.json, keys with an absolute path are left out.

    Libraries write there where they read it from (``_name_or_path``, ``tokenizer_file``). A file without one is copied
    byte by byte.
    """
    if copy.suffix == ".json" and copy.name not in _TABLES and source.stat().st_size <= _CONFIGURATION_BYTES:
        try:
            content = json.loads(source.read_bytes())
        except (ValueError, RecursionError):
            content = None  # whoever reads it will say so
        kept = _kept(content)
        if kept != content:
            copy.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            return
    shutil.copyfile(source, copy)


def _kept(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _kept(value) for key, value in content.items() if not _is_path(value)}
    return [_kept(item) for item in content] if isinstance(content, list) else content


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and _PATH.fullmatch(value) is not None
