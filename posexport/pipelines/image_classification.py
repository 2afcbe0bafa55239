"""``image-classification``: the labels of a picture with scores."""

from typing import Any

import numpy as np

from posexport.errors import PosexportError
from posexport.options.suggest import check_choice
from posexport.pipelines.image_pipeline import ImagePipeline
from posexport.pipelines.text_classification import FUNCTIONS
from posexport.runtime.batches import Batches
from posexport.runtime.rank import LOGITS

#: labels of an answer where the caller does not say
_USUAL = 5


class ImageClassification(ImagePipeline):
    """Inputs are pictures."""

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        top_k: int | None = None,
        function_to_apply: str | None = None,
    ) -> list[Any]:
        """``[{"label", "score"}, ...]`` of each picture, the likeliest first.

        Args:
            items: pictures.
            batches: of calls.
            top_k: labels of an answer at most; None: 5.
            function_to_apply: ``sigmoid``, ``softmax`` or ``none``; None: by ``problem_type`` and the number of labels.
        """
        if top_k is not None and (not isinstance(top_k, int) or top_k < 1):
            raise PosexportError(f"top_k must be at least 1, got {top_k}; leave it out for the best {_USUAL}")
        if function_to_apply is not None:
            check_choice("function_to_apply", function_to_apply.lower(), FUNCTIONS)
        answers = []
        for logits_L in self.run_pictures(items, batches, LOGITS):
            scores_L = FUNCTIONS[(function_to_apply or self._function(len(logits_L))).lower()](logits_L)
            names = self.files.labels(len(scores_L))
            order = np.argsort(-scores_L, kind="stable")[: top_k or _USUAL]
            answers.append([{"label": names[place], "score": float(scores_L[place])} for place in order])
        return answers

    def _function(self, labels: int) -> str:
        problem = self.files.config.get("problem_type")
        if problem == "regression":
            return "none"
        return "sigmoid" if problem == "multi_label_classification" or labels == 1 else "softmax"
