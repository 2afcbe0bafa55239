"""Pictures and sound as a bundle's input arrays, by a package for each kind, imported at its first use."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from posexport.run.bundle.manifest import Manifest

Arrays = dict[str, NDArray[Any]]
#: inputs of one kind (pictures, sounds) to arrays by input name
Processor = Callable[..., Arrays]
#: the package of each kind; its ``open_processor(directory, manifest)`` returns a `Processor`, and its
#: ``remarks(files)`` sentences for what the files of a checkpoint, by name, ask for and the processor does not do
PACKAGES = {"images": "posexport.run.images", "audio": "posexport.run.audio"}


def open_processor(kind: str, directory: Path, manifest: Manifest) -> Processor:
    """The processor of ``kind``, a key of `PACKAGES`, for the bundle in ``directory``.

    Raises PosexportError where the bundle takes no input of that kind, or its settings are not supported.
    """
    processor: Processor = importlib.import_module(PACKAGES[kind]).open_processor(directory, manifest)
    return processor


def remarks(files: Mapping[str, Path]) -> list[str]:
    """Sentences about settings in a checkpoint's ``files`` (paths by name) that `Session.prepare` does not follow.

    Empty for files that no processor reads, e.g. the files of a text model.
    """
    packages = [importlib.import_module(package) for package in PACKAGES.values()]
    return [sentence for package in packages if hasattr(package, "remarks") for sentence in package.remarks(files)]
