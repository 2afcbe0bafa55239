"""Graphs in ONNX's text syntax as files and subjects."""

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx.parser

from posexport.inspect.audit.subject import Subject


def saved(text: str, folder: Path, name: str = "model.onnx", files: Mapping[str, str] | None = None) -> Path:
    """Writes a checked model, and the JSON files of its repository."""
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / name)
    for file, content in (files or {}).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(content, encoding="utf-8")
    return folder / name


def subject(text: str, folder: Path, files: Mapping[str, str] | None = None, *, provider: str = "cpu") -> Subject:
    return Subject(saved(text, folder, files=files), provider=provider)
