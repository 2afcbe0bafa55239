"""``feature-extraction``: the hidden states of every token of a text."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from posexport.errors import PosexportError
from posexport.run.batches import Batches
from posexport.run.pipelines.text_pipeline import TextPipeline, tokenizer_options

STATES = "last_hidden_state"


class FeatureExtraction(TextPipeline):
    """Inputs are texts."""

    def setup(self) -> None:
        super().setup()
        names = [spec.name for spec in self.session.outputs]
        if STATES not in names:
            raise PosexportError(
                f"feature-extraction gives {STATES}, and this bundle gives {', '.join(names)}; use session.encode, or "
                "convert the checkpoint with --task features"
            )

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        truncation: bool | str | None = None,
        tokenize_kwargs: Mapping[str, Any] | None = None,
        return_tensors: bool = False,
    ) -> list[Any]:
        """[1, tokens, hidden size] of each text, as nested lists.

        Args:
            items: texts.
            batches: of calls; padding is never among the tokens.
            truncation: True cuts texts at the limit; otherwise longer ones are an error.
            tokenize_kwargs: options of the tokenizer, e.g. ``max_length``.
            return_tensors: NumPy arrays instead of lists.
        """
        stated = dict(tokenize_kwargs or {})
        if truncation is not None:
            if "truncation" in stated:
                raise PosexportError("truncation is given twice, also in tokenize_kwargs; leave one out")
            stated["truncation"] = truncation
        rows = self.encoded(items, **tokenizer_options(stated))

        def states(_: int, outputs: dict[str, Any]) -> Any:
            # a copy: a view would keep the whole batch
            states_1TC = np.array(outputs[STATES][None])
            return states_1TC if return_tensors else states_1TC.tolist()

        return self.run_rows(rows, batches, [STATES], states)
