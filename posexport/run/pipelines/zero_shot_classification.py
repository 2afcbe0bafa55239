"""``zero-shot-classification``: labels that the caller names, by a model of natural language inference.

Yin et al., "Benchmarking Zero-shot Text Classification" (arXiv:1909.00161): each label becomes a hypothesis, and the
text is its premise; the logit of entailment is the label's.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from posexport.errors import PosexportError
from posexport.run.activations import softmax
from posexport.run.batches import Batches
from posexport.run.pipelines.pipeline import Floats
from posexport.run.pipelines.text_pipeline import TextPipeline
from posexport.run.pipelines.zero_shot import NamedLabels, listed_labels
from posexport.run.scores import LOGITS


class ZeroShotClassification(NamedLabels, TextPipeline):
    """Inputs are texts."""

    def setup(self) -> None:
        super().setup()
        self._entailment = self._entailment_label()

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        candidate_labels: str | Sequence[str] | None = None,
        hypothesis_template: str = "This example is {}.",
        multi_label: bool = False,
    ) -> list[dict[str, Any]]:
        """``{"sequence", "labels", "scores"}`` of each text.

        Args:
            items: texts; a text beyond the limit is cut, the hypothesis is not.
            batches: of calls.
            candidate_labels: a list, or a text with commas.
            hypothesis_template: with ``{}`` as the placeholder of the label.
            multi_label: each label is scored by itself, entailment against contradiction.
        """
        labels = listed_labels(candidate_labels)
        try:
            hypothesis = hypothesis_template.format(labels[0])
        except (IndexError, KeyError, ValueError) as err:
            raise PosexportError(
                f"hypothesis_template {hypothesis_template!r} has braces other than one {{}} ({err}); double the others"
            ) from err
        if hypothesis == hypothesis_template:
            raise PosexportError(f"hypothesis_template {hypothesis_template!r} has no {{}} for the label; give it one")
        for number, item in enumerate(items):
            if not isinstance(item, str) or not item:
                raise PosexportError(f"input {number} must be a text that is not empty, got {item!r:.60}")
        pairs = [(item, hypothesis_template.format(label)) for item in items for label in labels]
        cut = self.known_length is not None or self.session.manifest.limits.max_length is not None
        rows = self.encoded(pairs, truncation="only_first" if cut else False)
        logits_NL = np.stack(self.run_rows(rows, batches, [LOGITS], lambda _, outputs: outputs[LOGITS]))
        return [
            self._answer(item, labels, logits_NL[start : start + len(labels)], multi_label=multi_label)
            for item, start in zip(items, range(0, len(rows), len(labels)), strict=True)
        ]

    def _answer(self, text: str, labels: list[str], logits_NL: Floats, *, multi_label: bool) -> dict[str, Any]:
        if multi_label or len(labels) == 1:
            contradiction = -1 if self._entailment == 0 else 0
            scores_N = softmax(logits_NL[:, [contradiction, self._entailment]])[:, 1]
        else:
            scores_N = softmax(logits_NL[:, self._entailment])
        order = scores_N.argsort()[::-1]
        return {"sequence": text, "labels": [labels[place] for place in order], "scores": scores_N[order].tolist()}

    def _entailment_label(self) -> int:
        """The label that begins with ``entail``; the last one where there is none, as in transformers."""
        stated = self.files.config.get("label2id")
        if not isinstance(stated, dict):
            names = self.files.config.get("id2label")
            stated = {str(name): number for number, name in names.items()} if isinstance(names, dict) else {}
        return next((int(number) for name, number in stated.items() if name.lower().startswith("entail")), -1)
