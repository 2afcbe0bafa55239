"""Copies of golden checkpoints to spoil."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import GOLDEN


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    def made(name: str) -> Path:
        target = tmp_path / name
        shutil.copytree(GOLDEN / name, target, ignore=shutil.ignore_patterns("expected.safetensors"))
        return target

    return made


@pytest.fixture
def bert(copy: Callable[[str], Path]) -> Path:
    """A plain BertModel with relative_key positions; its names have no prefix."""
    return copy("bert-relative_key")


@pytest.fixture
def masked(copy: Callable[[str], Path]) -> Path:
    """A BertForMaskedLM with absolute positions."""
    return copy("bert-absolute")
