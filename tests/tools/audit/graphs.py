"""Graphs in ONNX's text syntax as files and subjects."""

from pathlib import Path

import onnx
import onnx.parser

from posexport.tools.audit.subject import Subject


def saved(text: str, folder: Path, name: str = "model.onnx") -> Path:
    """Writes a checked model."""
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / name)
    return folder / name


def subject(text: str, folder: Path) -> Subject:
    return Subject(saved(text, folder))
