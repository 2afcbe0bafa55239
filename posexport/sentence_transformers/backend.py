"""NumPy side of the module for sentence-transformers: texts to features, features to vectors or scores.

The names of features are the library's (`sentence_transformers.base.modules.Module.forward`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import PROMPT_MASK, SEQUENCE, OutputSpec, PairRules, TextRules
from posexport.base.targets.providers import DEFAULT_PROVIDER, PROVIDERS
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import Manifest
from posexport.run.chat import Chat
from posexport.run.embed import EMBEDDING
from posexport.run.load import load
from posexport.run.scores import LOGITS, message_rows
from posexport.run.texts import Texts

STATES, TOKENS, SCORES, PROMPT_LENGTH = "last_hidden_state", "token_embeddings", "scores", "prompt_length"
MASK = "attention_mask"
#: keyword arguments that are passed on to `posexport.load`
OPTIONS = ("provider", "precision", "threads", "memory", "check", "provider_options")

Text = str | Sequence[str]
Arrays = dict[str, NDArray[Any]]


class Backend:
    """An open bundle with the methods that sentence-transformers calls on its first module."""

    def __init__(self, directory: Path, options: Mapping[str, Any]) -> None:
        """Opens the bundle. ``options``: of `posexport.load`; ``provider`` may be ONNX Runtime's name.

        Raises:
            PosexportError: an unknown option, or a bundle without vectors and scores.
        """
        if unknown := sorted(set(options) - set(OPTIONS)):
            raise PosexportError(
                f"unknown option {', '.join(unknown)}; a bundle is opened with {', '.join(OPTIONS)} (in model_kwargs, "
                "or as arguments of posexport.sentence_transformers.Transformer)"
            )
        self.directory = directory
        self.session = load(directory, **{**options, "provider": _provider(options.get("provider"))})
        self.manifest = self.session.manifest
        self.outputs = outputs_of(self.manifest)
        self._lengths = [None if rules is None else rules.max_length for rules in self._rules]
        self._texts = Texts(directory, self.manifest)
        self._pair_rules = self.manifest.pair_rules

    @property
    def _rules(self) -> tuple[TextRules | None, PairRules | None]:
        return self.manifest.text_rules, self.manifest.pair_rules

    @property
    def max_length(self) -> int | None:
        """Maximum tokens of texts and pairs, special tokens included; None: no limit."""
        stated = [length for length in (*self._lengths, self.manifest.limits.max_length) if length is not None]
        return min(stated, default=None)

    @max_length.setter
    def max_length(self, length: int | None) -> None:
        if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
            raise PosexportError(f"max_seq_length must be at least 1, got {length!r:.60}; give a number of tokens")
        text, pair = self._rules
        self._pair_rules = None if pair is None else msgspec.structs.replace(pair, max_length=length)
        text = msgspec.structs.replace(text or TextRules(), max_length=length)
        changed = msgspec.structs.replace(self.manifest, text_rules=text, pair_rules=self._pair_rules)
        self._lengths = [length]
        self._texts = Texts(self.directory, changed)

    @property
    def dimension(self) -> int | None:
        """Elements of a vector, or labels of a cross-encoder."""
        names = {self.outputs[spec.name]: spec for spec in self.manifest.outputs if spec.name in self.outputs}
        spec = names.get(EMBEDDING) or names.get(TOKENS) or names[SCORES]
        size = spec.axes[-1]
        return size if isinstance(size, int) else None

    def preprocess(self, inputs: Sequence[Text], prompt: str | None) -> dict[str, Any]:
        """Ids, mask and types of texts or pairs with ``prompt`` as prefix; with a prompt also its ``prompt_length``."""
        if not _pairs(inputs):
            if odd := [text for text in inputs if not isinstance(text, str)]:
                raise PosexportError(f"this bundle takes texts, or pairs of texts, got {odd[0]!r:.60}; give strings")
            texts = [f"{prompt or ''}{text}" for text in inputs]
            features: dict[str, Any] = {**self._texts.padded(self._texts.rows(texts, truncate=True))}
        else:
            features = {**self._texts.padded(self._pair_rows(inputs, prompt))}
        if prompt:
            features[PROMPT_LENGTH] = self._texts.prompt_length(prompt)
        return features

    def _pair_rows(self, pairs: Sequence[Sequence[str]], prompt: str | None) -> list[Any]:
        rules, both = self._pair_rules, [(first, second) for first, second in pairs]
        if rules is not None and rules.messages is not None:
            return [*message_rows(both, self._texts, Chat(self.directory, self.manifest), rules, prompt or "")]
        if rules is not None and rules.template is not None:
            return self._texts.pairs(both, prompt)
        return self._texts.pairs([(f"{prompt or ''}{first}", second) for first, second in both], None)

    def forward(self, features: Mapping[str, Any]) -> Arrays:
        """The bundle's outputs for ``features``, by sentence-transformers' names."""
        taken = [spec.name for spec in self.session.inputs]
        feeds = {name: np.asarray(features[name]) for name in taken if name in features}
        if PROMPT_MASK in taken and features.get(PROMPT_LENGTH) is not None:
            mask_BT = feeds.get(MASK, np.ones_like(feeds[taken[0]]))
            feeds[PROMPT_MASK] = mask_BT * (mask_BT.cumsum(1) <= int(np.ravel(features[PROMPT_LENGTH])[0]))
        answers = self.session.run(feeds, outputs=list(self.outputs))
        return {self.outputs[name]: array for name, array in answers.items()}


def _pairs(inputs: Sequence[Text]) -> TypeGuard[Sequence[Sequence[str]]]:
    """Whether inputs are pairs of texts. Raises PosexportError for other lists."""
    listed = [isinstance(item, tuple | list) for item in inputs]
    if not any(listed):
        return False
    for number, pair in enumerate(inputs):
        if not listed[number] or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise PosexportError(f"pair {number} must be two texts, got {pair!r:.60}; give (query, document)")
    return True


def _provider(name: Any) -> str:
    """posexport's name of a provider, for posexport's or ONNX Runtime's name."""
    if name is None:
        return DEFAULT_PROVIDER
    return next((record.name for record in PROVIDERS.values() if record.ort_name == name), str(name))


def outputs_of(manifest: Manifest) -> dict[str, str]:
    """Sentence-transformers' names of the bundle's outputs. Raises PosexportError if it reads none of them."""
    names = {spec.name: name for spec in manifest.outputs if (name := _feature(spec, manifest)) is not None}
    if not names:
        listed = ", ".join(spec.name for spec in manifest.outputs)
        raise PosexportError(
            f"this bundle is for {manifest.task} and gives {listed}; sentence-transformers needs {EMBEDDING}, {STATES} "
            "or the scores of a cross-encoder: convert it for --task sentence-embedding, features or "
            "sequence-classification"
        )
    return names


def _feature(spec: OutputSpec, manifest: Manifest) -> str | None:
    if spec.name in (EMBEDDING, TOKENS):
        return spec.name
    if spec.name == STATES:
        return TOKENS
    if spec.name != LOGITS:
        return None
    if SEQUENCE not in spec.axes:
        return SCORES
    # logits of a masked LM are the input of SpladePooling
    return TOKENS if manifest.task == "fill-mask" else None
