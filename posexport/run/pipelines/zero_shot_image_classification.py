"""``zero-shot-image-classification``: labels that the caller names, by a model of pictures and texts (CLIP, SigLIP).

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision" (arXiv:2103.00020), 3.1: each
label becomes a sentence, and the likeness of its vector to the picture's is the label's logit. CLIP's scores are their
softmax; SigLIP's (arXiv:2303.15343) are each a sigmoid.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.activations import sigmoid, softmax
from posexport.run.batches import Batches
from posexport.run.images.open_clip import FILE as OPEN_CLIP_CONFIG
from posexport.run.pipelines.images import ImagePipeline
from posexport.run.pipelines.text_pipeline import TextPipeline
from posexport.run.pipelines.zero_shot import NamedLabels, checked_labels

if TYPE_CHECKING:
    from tokenizers import Encoding

PER_IMAGE, MASK = "logits_per_image", "attention_mask"
#: tokens that SigLIP's texts are padded to, as it was trained
SIGLIP_LENGTH = 64


class ZeroShotImageClassification(NamedLabels, ImagePipeline, TextPipeline):
    """Inputs are pictures."""

    shortening = "shorter labels, or a shorter hypothesis_template"

    def setup(self) -> None:
        ImagePipeline.setup(self)
        TextPipeline.setup(self)
        self._siglip = "siglip" in str(self.files.config.get("model_type"))
        # open_clip's models have a bias where they were trained as SigLIP
        stated = self.files.json(OPEN_CLIP_CONFIG).get("model_cfg")
        biased = isinstance(stated, dict) and stated.get("init_logit_bias") is not None
        self._scores = sigmoid if self._siglip or biased else softmax

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        candidate_labels: Sequence[str] | None = None,
        hypothesis_template: str = "This is a photo of {}.",
    ) -> list[list[dict[str, Any]]]:
        """``[{"score", "label"}, ...]`` of each picture, the likeliest first.

        Args:
            items: pictures.
            batches: of calls.
            candidate_labels: a list of texts.
            hypothesis_template: with ``{}`` in the label's place; ``"{}"`` for labels that are sentences.
        """
        labels = checked_labels(candidate_labels)
        feeds = self._feeds([_sentence(hypothesis_template, label) for label in labels])
        answers = []
        for logits_N in self.run_pictures(items, batches, PER_IMAGE, feeds=feeds):
            scores_N = self._scores(logits_N)
            order = np.argsort(-scores_N, kind="stable")
            answers.append([{"score": float(scores_N[place]), "label": labels[place]} for place in order])
        return answers

    def _feeds(self, sentences: list[str]) -> dict[str, NDArray[Any]]:
        """Token ids and mask of ``sentences``; SigLIP's are cut and padded to `SIGLIP_LENGTH`, open_clip's to its."""
        (ids,) = (spec for spec in self.session.inputs if spec.role == "tokens")
        if isinstance(length := ids.axes[-1], int):
            return dict(self.texts.padded(self.encoded(sentences, truncation=True, max_length=length)))
        if not self._siglip:
            return dict(self.texts.padded(self.encoded(sentences)))
        encodings = self.encoded(sentences, truncation=True, max_length=SIGLIP_LENGTH)
        for encoding in encodings:
            self._pad(encoding)
        feeds: dict[str, NDArray[Any]] = dict(self.texts.padded(encodings))
        if MASK in feeds and not self._has_mask():
            feeds[MASK] = np.ones_like(feeds[MASK])
        return feeds

    def _pad(self, encoding: "Encoding") -> None:
        side = "right" if self.texts.start(SIGLIP_LENGTH, 1) == 0 else "left"
        encoding.pad(SIGLIP_LENGTH, direction=side, pad_id=self.special_id("pad_token") or 0)

    def _has_mask(self) -> bool:
        """Whether the tokenizer gives a mask; without one, as of published SigLIPs, padding is attended to."""
        names = self.files.tokenizer_config.get("model_input_names")
        return MASK in names if isinstance(names, list) else True


def _sentence(template: str, label: str) -> str:
    try:
        return template.format(label)
    except (IndexError, KeyError, ValueError) as err:
        raise PosexportError(
            f"hypothesis_template {template!r} cannot take a label ({err}); give a text with {{}} where the label goes"
        ) from None
