"""``fill-mask``: the likeliest tokens for each mask."""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.activations import softmax
from posexport.run.batches import Batches
from posexport.run.pipelines.pipeline import Floats, as_inputs
from posexport.run.pipelines.text_pipeline import TextPipeline, tokenizer_options
from posexport.run.scores import LOGITS

if TYPE_CHECKING:
    from tokenizers import Encoding


class FillMask(TextPipeline):
    """Inputs are texts with at least one mask token."""

    shortening = 'tokenizer_kwargs={"truncation": True} to use its first ones'

    def setup(self) -> None:
        super().setup()
        mask = self.special_id("mask_token")
        if mask is None:
            raise PosexportError(
                f"the tokenizer of {self.session.directory} has no mask_token, which fill-mask needs; convert the "
                "checkpoint with its tokenizer_config.json"
            )
        self._mask = mask
        self._padding = self.special_id("pad_token")

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        top_k: int | None = None,
        targets: str | Sequence[str] | None = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """For each text a list of ``{"score", "token", "token_str", "sequence"}``; of several masks a list for each.

        Args:
            items: texts.
            batches: of calls.
            top_k: tokens of each mask; None: 5.
            targets: only these tokens; of one that the vocabulary does not have, its first token.
            tokenizer_kwargs: options of the tokenizer, e.g. ``truncation``.
        """
        count = 5 if top_k is None else top_k
        if count < 1:
            raise PosexportError(f"top_k must be at least 1, got {top_k}")
        ids = None if targets is None else self._targets([targets] if isinstance(targets, str) else targets)
        rows = self.encoded(items, **tokenizer_options(tokenizer_kwargs))
        for number, (item, encoding) in enumerate(zip(items, rows, strict=True)):
            if self._mask not in encoding.ids:
                token = self.tokenizer.id_to_token(self._mask)
                raise PosexportError(f"input {number} ({item!r:.60}) has no {token}; put it where a token is wanted")
        return self.run_rows(
            rows, batches, [LOGITS], lambda number, outputs: self._answer(rows[number], outputs[LOGITS], count, ids)
        )

    def truncating(self) -> dict[str, Any]:
        return {"tokenizer_kwargs": {"truncation": True}}

    def __call__(self, inputs: Any, *, batch_size: int | None = None, **options: Any) -> Any:
        """Calls the pipeline; a list of one text returns the result without a list, as in transformers."""
        inputs = as_inputs(inputs)
        answers = super().__call__(inputs, batch_size=batch_size, **options)
        return answers[0] if isinstance(inputs, list) and len(inputs) == 1 else answers

    def _answer(
        self, encoding: "Encoding", logits_TV: Floats, count: int, targets: NDArray[np.int64] | None
    ) -> list[dict[str, Any]] | list[list[dict[str, Any]]]:
        ids = np.array(encoding.ids)
        (masks,) = np.nonzero(ids == self._mask)
        scores_MV = softmax(logits_TV[masks])
        if targets is not None:
            scores_MV = scores_MV[:, targets]
        single = len(masks) == 1
        answers = []
        for mask, scores_V in zip(masks, scores_MV, strict=True):
            best = np.argsort(-scores_V, kind="stable")[:count]
            tokens = best if targets is None else targets[best]
            answers.append(
                [
                    self._filled(ids, int(mask), int(token), float(scores_V[place]), single=single)
                    for place, token in zip(best, tokens, strict=True)
                ]
            )
        return answers[0] if single else answers

    def _filled(self, ids: NDArray[np.int64], mask: int, token: int, score: float, *, single: bool) -> dict[str, Any]:
        filled = ids.copy()
        filled[mask] = token
        shown = [int(token_id) for token_id in filled if token_id != self._padding]
        return {
            "score": score,
            "token": token,
            "token_str": self.decode([token]),
            # of several masks the others are shown, which are special tokens
            "sequence": self.decode(shown, skip_special_tokens=single),
        }

    def _targets(self, targets: Sequence[str]) -> NDArray[np.int64]:
        ids: set[int] = set()
        for target in targets:
            number = self.texts.token_id(target)
            if number is None:
                pieces = self.texts.pieces(target)
                instead = f"its first token {self.tokenizer.id_to_token(pieces[0])} is taken" if pieces else "left out"
                warnings.warn(f"the vocabulary has no token {target!r}; {instead}", stacklevel=4)
                number = pieces[0] if pieces else None
            if number is not None:
                ids.add(number)
        if not ids:
            raise PosexportError(f"targets {list(targets)!r:.60} name no token of the vocabulary; give at least one")
        return np.array(list(ids))
