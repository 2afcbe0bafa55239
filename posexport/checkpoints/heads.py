"""Puts heads on definitions: poolings, projections, scores of the last token, the pooler of BERT.

Each function takes a `Plan` and returns the plan of the model with the head; the checkpoint has the head's weights.
"""

import re
from collections.abc import Container
from dataclasses import replace

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.mapping import Origin, Plan, RowDifference, origin
from posexport.checkpoints.opened import Checkpoint
from posexport.checkpoints.pooling import Pooling, head_of, stored_name
from posexport.checkpoints.scoring import TEXT_RANKING, Answers, built_as, check_answers, yes_or_no
from posexport.errors import PosexportError
from posexport.models.decoder import DecoderModel
from posexport.models.heads import HeadedDecoder
from posexport.models.prompt_excluded import PromptExcluded
from posexport.nn.heads import Features, Head, PooledFeatures
from posexport.nn.pooling import LastToken, SentenceEmbedding, Splade, SpladeConfig


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
    hidden = decoder.width if decoder is not None else int(model.outputs[0].axes[-1])
    with torch.device("meta"):
        head = head_of(pooling, hidden, model=family, decoder=isinstance(model, DecoderModel | HeadedDecoder))
    origins = plan.origins
    if not pooling.rules.prompt_pooled:
        # the tokens of a prompt are an input of the model
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
    """Changes a fill-mask model to return SPLADE term weights, computed from its logits; returns its plan."""
    model = plan.model
    assert isinstance(model.head, Head)
    model.head = Splade(model.head, int(model.outputs[0].axes[-1]), config)
    origins = {re.sub(r"^head\.", "head.inner.", name): origin for name, origin in plan.origins.items()}
    return replace(plan, origins=origins)


def with_pooler(plan: Plan, family: Family, stored: Container[str]) -> Plan:
    """The plan of a model for features with ``pooler_output``, where ``stored`` names the pooler's weights.

    The model is changed. transformers would give a pooler without weights random ones; here there is no
    ``pooler_output``.
    """
    if family.pooler is None:
        return plan
    names = {leaf: f"{family.prefix}.{family.pooler}.{leaf}" for leaf in ("weight", "bias")}
    head = getattr(plan.model, "head", None)
    if not isinstance(head, Features) or not all(name in stored for name in names.values()):
        return plan
    with torch.device("meta"):
        pooled = PooledFeatures(int(head.outputs[0].axes[-1]))
    plan.model.head = pooled
    plan.model.reads_first_token = True
    return replace(plan, origins=plan.origins | {f"head.dense.{leaf}": origin(name) for leaf, name in names.items()})


def with_score(plan: Plan, checkpoint: Checkpoint, family: Family, task: str) -> Plan:
    """Adds a head to a decoder's plan that scores the last token; returns other plans unchanged.

    ``text-ranking``: the logit of one token minus the logit of another; the sigmoid of the difference is the softmax
    over both. The checkpoint's LogitScore module names the tokens; the default is "yes" and "no".
    """
    model, config = plan.model, checkpoint.config
    if not isinstance(model, DecoderModel | HeadedDecoder) or built_as(task, family) == task:
        return plan
    labels = 1 if task == TEXT_RANKING else config.labels()
    with torch.device("meta"):
        head = LastToken(model.decoder.width, labels)
    origins = {name: source for name, source in plan.origins.items() if not name.startswith("head.")}
    if task == TEXT_RANKING:
        assert isinstance(model, DecoderModel)
        answers = checkpoint.answers or yes_or_no(checkpoint.files, checkpoint.below)
        origins["head.out.weight"] = _difference(plan, model, config, answers)
    else:
        origins["head.out.weight"] = Origin((f"{family.score}.weight",))
    padding = config.values.get("pad_token_id") if task != TEXT_RANKING else None
    scored = HeadedDecoder(model.decoder, head, padding_is=padding if isinstance(padding, int) else None)
    return replace(plan, model=scored, origins=origins)


def _difference(plan: Plan, model: DecoderModel, config: Config, answers: Answers) -> Origin:
    """The difference of two rows of the projection to the vocabulary."""
    settings, head = model.decoder.config, model.head
    linear = (
        head is not None and head.narrow is None and not settings.head.bias and head.scale == 1 and head.cap is None
    )
    if not linear:
        raise PosexportError(
            f"{config.label}: {TEXT_RANKING} reads logits of two tokens, which this model scales, caps or shifts; "
            "choose --task text-generation"
        )
    check_answers(answers, settings.vocab)
    name = "decoder.token.weight" if settings.head.tied else "head.out.weight"
    return plan.origins[name].then(RowDifference(answers.true, answers.false, settings.vocab))
