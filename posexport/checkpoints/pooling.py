"""How sentence-transformers makes a sentence's vector of a transformer's hidden states."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from posexport.checkpoints.plan import Origin, Plan
from posexport.errors import PosexportError
from posexport.models.decoder import DecoderModel
from posexport.models.decoder_head import HeadedDecoder
from posexport.models.prompt_excluded import PromptExcluded
from posexport.nn.heads import Features, Head
from posexport.nn.pooling import (
    DenseConfig,
    LayerNormConfig,
    Mode,
    PooledScores,
    SentenceEmbedding,
    StepConfig,
    TokenEmbeddings,
)
from posexport.nn.splade import Splade, SpladeConfig
from posexport.spec import TextRules


@dataclass(frozen=True, kw_only=True)
class Step:
    """A module behind the pooling: a projection or layer normalisation with its folder, or the division by length."""

    dense: DenseConfig | None
    norm: LayerNormConfig | None = None
    #: of its weights, ending in ``/``
    folder: str = ""

    @property
    def config(self) -> StepConfig:
        return self.dense or self.norm


@dataclass(frozen=True, kw_only=True)
class Pooling:
    """``below`` is the folder of config.json and weights, empty or ending in ``/``; ``width`` that of the states.

    Without ``modes`` and ``splade`` every token has a vector.
    """

    modes: Sequence[Mode]
    steps: Sequence[Step]
    width: int
    width_key: str
    label: str
    rules: TextRules
    below: str = ""
    files: list[str] = field(default_factory=list)
    #: weights of words in place of a pooling of states
    splade: SpladeConfig | None = None
    #: what it gives are scores of a text or a pair of texts (CrossEncoder)
    scores: bool = False
    #: texts are padded on the left, so that the first token of a text is not in the first slot
    first_kept: bool = False

    @property
    def task(self) -> str:
        if self.scores:
            return "sequence-classification"
        return "token-embedding" if self.rules.tokens is not None else "sentence-embedding"

    @property
    def built_as(self) -> str:
        """The task whose model it stands on."""
        return "features" if self.splade is None else "fill-mask"

    @property
    def folders(self) -> list[str]:
        """Those of the steps' weights that are not beside the transformer's."""
        return [step.folder for step in self.steps if step.config is not None and step.folder]


def with_pooling(plan: Plan, pooling: Pooling, family: str) -> Plan:
    """The plan of a model for features with the pooling as its head; the model is changed, a decoder wrapped.

    PosexportError where it pools vectors of another size, or where the model gives no states of tokens.
    """
    if pooling.splade is not None:
        return _with_splade(plan, pooling.splade)
    model = plan.model
    decoder = model.decoder if isinstance(model, DecoderModel) else None
    if decoder is None and not (hasattr(model, "head") and isinstance(model.head, Features)):
        raise PosexportError(
            f"{pooling.label}: the states of {family} are not pooled here; use --task features for the transformer "
            "alone"
        )
    filled = pooling.rules.tokens is not None and pooling.rules.tokens.filled_to is not None
    if filled and isinstance(model, DecoderModel | HeadedDecoder):
        raise PosexportError(
            f"{pooling.label}: queries are filled up with tokens (query expansion), which {family}, a decoder, is not "
            "given here; convert it with query expansion switched off, or --task features and pool yourself"
        )
    hidden = decoder.width if decoder is not None else int(model.outputs[0].axes[-1])
    if pooling.width != hidden:
        raise PosexportError(
            f"{pooling.label} says {pooling.width_key} = {pooling.width}; config.json says hidden_size = {hidden}"
        )
    with torch.device("meta"):
        head = head_of(pooling, hidden)
    origins = plan.origins
    if not pooling.rules.prompt_pooled:
        assert isinstance(head, SentenceEmbedding)
        states = model if decoder is None else HeadedDecoder(decoder, Features(hidden))
        model = PromptExcluded(states, head)
        origins = {f"model.{name}": origin for name, origin in origins.items()}
    elif decoder is not None:
        model = HeadedDecoder(decoder, head)
    else:
        model.head, model.reads_first_token = head, head.reads_first_token
    projections = {f"head.{name}": Origin((stored_name(name, pooling.steps),)) for name, _ in head.named_parameters()}
    return replace(plan, model=model, origins=origins | projections)


def _with_splade(plan: Plan, config: SpladeConfig) -> Plan:
    """The plan of a model for fill-mask whose logits become weights of words; the model is changed."""
    model = plan.model
    assert isinstance(model.head, Head)
    model.head = Splade(model.head, int(model.outputs[0].axes[-1]), config)
    origins = {re.sub(r"^head\.", "head.inner.", name): origin for name, origin in plan.origins.items()}
    return replace(plan, origins=origins)


def head_of(pooling: Pooling, hidden: int) -> Head:
    """The head that pools, or projects tokens, without its weights; ``hidden``: channels of the states."""
    if pooling.rules.tokens is not None:
        return TokenEmbeddings(hidden, [step.dense for step in pooling.steps if step.dense is not None])
    kind = PooledScores if pooling.scores else SentenceEmbedding
    steps = [step.config for step in pooling.steps]
    return kind(hidden, pooling.modes, steps, first_kept=pooling.first_kept)


def stored_name(name: str, steps: Sequence[Step]) -> str:
    """``steps.INDEX.PARAMETER`` of the head as the folder of that step has it."""
    _, index, parameter = name.split(".", 2)
    return steps[int(index)].folder + parameter
