"""``audio-classification``: labels of a sound, with scores."""

from collections.abc import Callable
from typing import Any

import numpy as np

from posexport.errors import PosexportError
from posexport.options.suggest import check_choice
from posexport.pipelines.audio_pipeline import AudioPipeline
from posexport.pipelines.scores import Floats, sigmoid, softmax
from posexport.runtime.batches import Batches

FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {"softmax": softmax, "sigmoid": sigmoid, "none": lambda x: x}
#: functions that transformers applies by ``problem_type``; softmax to all others
OF_PROBLEM = {"regression": "none", "multi_label_classification": "sigmoid"}


class AudioClassification(AudioPipeline):
    """Labels and scores of each sound, the best first."""

    def answers(
        self, items: list[Any], batches: Batches, *, top_k: int | None = None, function_to_apply: str | None = None
    ) -> list[Any]:
        """A list of ``{"score", "label"}`` for each sound.

        Args:
            items: sounds.
            batches: sounds of one length that may share a call.
            top_k: labels; None: all.
            function_to_apply: ``softmax``, ``sigmoid`` or ``none``; None: by the ``problem_type`` of config.json.
        """
        if top_k is not None and top_k < 1:
            raise PosexportError(f"top_k must be at least 1, got {top_k}")
        if function_to_apply is None:
            function_to_apply = OF_PROBLEM.get(str(self.files.config.get("problem_type")), "softmax")
        check_choice("function_to_apply", function_to_apply, FUNCTIONS)
        return [
            self._answer(FUNCTIONS[function_to_apply](logits_L), top_k)
            for logits_L in self.logits(self.processor.read(items), batches)
        ]

    def _answer(self, scores: Floats, top_k: int | None) -> list[dict[str, Any]]:
        names = self.files.labels(len(scores))
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [{"score": float(scores[place]), "label": names[place]} for place in order]
