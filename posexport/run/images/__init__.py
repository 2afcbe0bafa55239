"""Image processors: pictures as ``pixel_values``, as preprocessor_config.json says. NumPy and Pillow.

Each processor of transformers is a class of settings with its defaults (`posexport.run.images.registry`); values are
those of transformers' PIL backend, bit by bit.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from posexport.base.spec import BATCH
from posexport.base.system import extras
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import Manifest
from posexport.run.bundle.read import locate
from posexport.run.images.folder import FILES, read_processor, remarks
from posexport.run.images.qwen2_vl import GRIDS, in_rows
from posexport.run.tiles import IMAGE_SIZES, TILES

#: 1 at pixels, 0 at padding
PIXEL_MASK = "pixel_mask"
#: arrays about pixels that not every model reads
_IF_READ = {PIXEL_MASK, TILES, IMAGE_SIZES}

__all__ = ["open_processor", "remarks"]


def open_processor(directory: Path, manifest: Manifest) -> Callable[..., dict[str, NDArray[Any]]]:
    """``processor(images, **settings)`` of a bundle: the inputs of its graph: ``pixel_values``.

    ``images``: one picture or a list of them (`posexport.run.images.pictures`). ``settings``: names of
    preprocessor_config.json with other values for this call. ``all_arrays``: also return what the processor computes
    and the graph does not read.

    Raises:
        PosexportError: a bundle without preprocessor_config.json, a processor that is not known, settings that
            contradict each other, or Pillow is missing.
    """
    extras.require("preparing pictures", "PIL")
    contents = {name: locate(directory, name).read_bytes() for name in FILES if name in manifest.files}
    processor = read_processor(contents, str(directory))
    if processor is None:
        raise PosexportError(
            f"{directory} does not say how pictures are prepared (an image processor in preprocessor_config.json); "
            "convert a checkpoint that does, or give run the array pixel_values"
        )

    inputs = {spec.name: spec for spec in manifest.inputs}
    grids = inputs.get(GRIDS)

    def prepare(images: Any, *, all_arrays: bool = False, **settings: Any) -> dict[str, NDArray[Any]]:
        arrays = processor.changed(settings)(images)
        # of models that read one picture in each row
        if grids is not None and BATCH in grids.axes and GRIDS in arrays:
            arrays = in_rows(arrays)
        return {name: x for name, x in arrays.items() if all_arrays or name in inputs or name not in _IF_READ}

    return prepare
