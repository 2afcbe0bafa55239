"""Pictures as a model's inputs: the base of tasks about pictures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.images.pictures import open_picture
from posexport.pipelines.pipeline import Pipeline
from posexport.runtime.batches import Batches
from posexport.runtime.preparation import open_processor


class ImagePipeline(Pipeline):
    """A task about pictures: paths, bytes of files, ``PIL.Image`` or arrays.

    As in transformers, a ``PIL.Image`` is turned upright and made RGB, as a file is; an array stays as it is.
    """

    def setup(self) -> None:
        self.processor = open_processor("images", self.session.directory, self.session.manifest)

    def run_pictures(
        self,
        items: Sequence[Any],
        batches: Batches,
        output: str,
        *,
        settings: Mapping[str, Any] | None = None,
        feeds: Mapping[str, NDArray[Any]] | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """``output`` of every picture in float32, without the batch.

        Args:
            items: pictures.
            batches: its ``batch_size`` pictures share a call; by default one, as in transformers.
            output: name.
            settings: of the image processor, in place of the bundle's.
            feeds: further inputs of every call.

        Raises:
            PosexportError: no picture, or an output that the bundle does not give.
        """
        names = [spec.name for spec in self.session.outputs]
        if output not in names:
            raise PosexportError(
                f"the pipeline {self.task} needs the output {output}, and this bundle gives {', '.join(names)}"
            )
        size = batches.batch_size or 1
        for start in range(0, len(items), size):
            pictures = [_opened(item) for item in items[start : start + size]]
            arrays = self.processor(pictures, **(settings or {}))
            values = self.session.run({**(feeds or {}), **arrays}, outputs=[output])[output]
            # a copy: a view would keep the whole batch
            yield from (np.array(value, dtype=np.float32) for value in values)


def _opened(item: Any) -> Any:
    if isinstance(item, list | tuple):
        raise PosexportError(f"a list of {len(item)} stands where a picture is needed; give one list of pictures")
    return item if isinstance(item, np.ndarray) else open_picture(item)
