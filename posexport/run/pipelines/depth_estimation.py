"""``depth-estimation``: the depth of every pixel of a picture, as numbers and as a grey picture."""

from typing import Any

import numpy as np

from posexport.run.batches import Batches
from posexport.run.images.interpolation import interpolate
from posexport.run.pipelines.images import ImagePipeline

DEPTH = "predicted_depth"


class DepthEstimation(ImagePipeline):
    """Inputs are pictures."""

    def answers(self, items: list[Any], batches: Batches) -> list[dict[str, Any]]:
        """``{"predicted_depth", "depth"}`` of each picture: float32 [height, width], and a ``PIL.Image`` of 256 greys.

        The numbers are the model's; the greys are spread between its smallest and its largest number.
        """
        from PIL import Image

        answers = []
        for size, outputs in self.run_outputs(items, batches, [DEPTH]):
            depth_HW = interpolate(outputs[DEPTH], size, "bicubic")
            low, high = float(depth_HW.min()), float(depth_HW.max())
            # a flat map is black, where transformers divides by zero
            grey_HW = (depth_HW - low) / ((high - low) or 1.0)
            grey = Image.fromarray((grey_HW * 255).astype(np.uint8))
            answers.append({"predicted_depth": depth_HW, "depth": grey})
        return answers
