"""``text-classification`` (``sentiment-analysis``): labels of a text or a pair of texts, with scores."""

from collections.abc import Callable
from typing import Any

import numpy as np

from posexport.base.options.check import check_choice
from posexport.errors import PosexportError
from posexport.run.activations import sigmoid, softmax
from posexport.run.batches import Batches
from posexport.run.pipelines.pipeline import Floats
from posexport.run.pipelines.text_pipeline import Input, TextPipeline
from posexport.run.scores import LOGITS

FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {"sigmoid": sigmoid, "softmax": softmax, "none": lambda x: x}
#: the default of ``top_k``: one label, not in a list; None means all labels
BEST = ""


class TextClassification(TextPipeline):
    """Inputs are texts, or pairs as ``{"text": ..., "text_pair": ...}``."""

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        top_k: int | str | None = BEST,
        function_to_apply: str | None = None,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        padding: bool | str | None = None,
        add_special_tokens: bool = True,
    ) -> list[Any]:
        """The best label of each text; with ``top_k`` a list of that many labels, None: all.

        Args:
            items: texts or pairs.
            batches: of calls.
            top_k: labels of each text.
            function_to_apply: ``sigmoid``, ``softmax`` or ``none``; None: as config.json's ``problem_type`` and the
                number of labels say.
            truncation: True cuts texts at the limit; otherwise longer ones are an error.
            max_length: tokens at which texts are cut.
            padding: without effect: rows that share a call are padded.
            add_special_tokens: of the tokenizer.
        """
        if isinstance(top_k, int) and top_k < 1:
            raise PosexportError(f"top_k must be at least 1, got {top_k}; give None for all labels")
        if function_to_apply is not None:
            check_choice("function_to_apply", function_to_apply.lower(), FUNCTIONS)
        rows = self.encoded(
            [as_input(item, number) for number, item in enumerate(items)],
            truncation=truncation,
            max_length=max_length,
            add_special_tokens=add_special_tokens,
        )
        return self.run_rows(
            rows, batches, [LOGITS], lambda _, outputs: self._answer(outputs[LOGITS], top_k, function_to_apply)
        )

    def alone(self, item: Any, answer: Any, called: dict[str, Any]) -> Any:
        """Of one text a list, as the library has it."""
        return [answer] if isinstance(item, str) and "top_k" not in called else answer

    def _answer(self, logits_L: Floats, top_k: int | str | None, function: str | None) -> Any:
        scores = FUNCTIONS[(function or self._function(len(logits_L))).lower()](logits_L)
        names = self.files.labels(len(scores))
        if top_k == BEST:
            best = int(scores.argmax())
            return {"label": names[best], "score": float(scores[best])}
        order = np.argsort(-scores, kind="stable")[: None if top_k is None else int(top_k)]
        return [{"label": names[place], "score": float(scores[place])} for place in order]

    def _function(self, labels: int) -> str:
        problem = self.files.config.get("problem_type")
        if problem == "regression":
            return "none"
        if problem == "multi_label_classification" or labels == 1:
            return "sigmoid"
        return "softmax"


def as_input(item: Any, number: int) -> Input:
    """A text, or a pair of texts in one of the two forms that transformers knows."""
    if isinstance(item, dict) and set(item) <= {"text", "text_pair"} and "text" in item:
        return item["text"] if item.get("text_pair") is None else (item["text"], item["text_pair"])
    if isinstance(item, list) and len(item) == 1 and isinstance(item[0], list) and len(item[0]) == 2:
        return (item[0][0], item[0][1])
    if not isinstance(item, str):
        raise PosexportError(
            f'input {number} must be a text, or a pair as {{"text": ..., "text_pair": ...}}, got {item!r:.60}'
        )
    return item
