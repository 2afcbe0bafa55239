"""``image-feature-extraction``: the hidden states of a picture's patches, or its pooled vector."""

from collections.abc import Mapping
from typing import Any

from posexport.errors import PosexportError
from posexport.pipelines.feature_extraction import STATES
from posexport.pipelines.image_pipeline import ImagePipeline
from posexport.runtime.batches import Batches

POOLED = "pooler_output"


class ImageFeatureExtraction(ImagePipeline):
    """Inputs are pictures."""

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        pool: bool = False,
        return_tensors: bool = False,
        image_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """[1, patches, hidden size] of each picture, or [1, hidden size], as nested lists.

        Args:
            items: pictures.
            batches: of calls.
            pool: the pooled vector, of a model that has one.
            return_tensors: NumPy arrays instead of lists.
            image_processor_kwargs: settings of the image processor, in place of the bundle's.
        """
        names = [spec.name for spec in self.session.outputs]
        if pool and POOLED not in names:
            raise PosexportError(f"pool needs {POOLED}, and this bundle gives {', '.join(names)}; leave pool out")
        values = self.run_pictures(items, batches, POOLED if pool else STATES, settings=image_processor_kwargs)
        return [value[None] if return_tensors else value[None].tolist() for value in values]
