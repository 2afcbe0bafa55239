"""transformers' tokenizer of a folder, if transformers is installed. Code in the folder is not executed."""

import contextlib
import importlib.util
import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def is_installed() -> bool:
    return importlib.util.find_spec("transformers") is not None


def version() -> str:
    import transformers

    return str(transformers.__version__)


@contextlib.contextmanager
def folder(files: Mapping[str, Path]) -> Iterator[Path]:
    """A temporary folder with ``files`` under their names; large files are links, weights are left out."""
    with TemporaryDirectory(prefix="posexport-tokenizer-") as name:
        for file, path in files.items():
            copy = Path(name) / file
            if path.suffix in (".safetensors", ".bin", ".onnx"):
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.stat().st_size > 1_000_000:
                with contextlib.suppress(OSError):  # Windows makes links for some users only
                    copy.symlink_to(path.resolve())
            if not copy.exists():
                shutil.copyfile(path, copy)
        yield Path(name)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the library's warnings."""
    import transformers

    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(level)


def load(at: Path, handed_on: Mapping[str, Any]) -> Any:
    """``AutoTokenizer.from_pretrained`` of a folder, with its exceptions."""
    import transformers

    return transformers.AutoTokenizer.from_pretrained(
        str(at), local_files_only=True, trust_remote_code=False, **handed_on
    )
