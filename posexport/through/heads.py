"""Poolings, projections and scores on the hidden states of a model of transformers.

The heads are posexport's (`posexport.nn.pooling`, `posexport.nn.pooling`); the folders of sentence-transformers'
modules have their weights.

Shape letters: B batch, T tokens, C channels, V words.
"""

from typing import Any

import torch
from torch import Tensor, nn

from posexport.base.spec import BATCH, PROMPT_MASK, SEQUENCE, Axis, InputSpec, OutputSpec
from posexport.checkpoints.pooling import Pooling, head_of, stored_name
from posexport.checkpoints.scoring import Answers, check_answers
from posexport.checkpoints.weights import Weights
from posexport.errors import PosexportError
from posexport.nn.heads import Head
from posexport.nn.pooling import SentenceEmbedding, Splade, last_token
from posexport.sources.example import axis_sizes, example
from posexport.through.inputs import IDS, MASK, PIXELS, POSITIONS, SOUND, TYPES, forward_parameters, text_inputs
from posexport.through.module import TransformersModule

#: relative tolerance, to the largest logit, between the full projection and the projection of two rows
_ROUNDING = 1e-4


class Headed(TransformersModule):
    """``model`` with ``head`` on its output ``states``: ``last_hidden_state``, or the ``logits`` of a masked LM."""

    def __init__(
        self,
        model: Any,
        head: Head,
        inputs: list[InputSpec],
        *,
        states: str = "last_hidden_state",
        with_positions: bool,
    ) -> None:
        super().__init__(model, (), inputs, with_positions=with_positions)
        self.head = head
        self._states = states

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        prompt_BT = tensors.pop(PROMPT_MASK, None)
        self.add_positions(tensors)
        x_BTC = self.model(**tensors, return_dict=True)[self._states]
        prompt = () if prompt_BT is None else (prompt_BT,)
        outputs = self.head(x_BTC, tensors.get(MASK), *prompt)
        return {spec.name: output for spec, output in zip(self.head.outputs, outputs, strict=True)}


class IdentityHead(nn.Module):
    """Passes on the logits of a masked LM."""

    def forward(self, x_BTV: Tensor, _mask_BT: Tensor | None) -> tuple[Tensor, ...]:
        return (x_BTV,)


def pooled(label: str, model: Any, pooling: Pooling, weights: Weights) -> Headed:
    """``model`` with a pooling as its head.

    Args:
        label: name of the checkpoint in messages.
        model: of transformers.
        pooling: modes, projections and rules.
        weights: the checkpoint's, with the folders of the projections.

    Raises:
        PosexportError: the model reads more than texts, or its hidden size is not the pooling's.
    """
    inputs = _inputs(label, model)
    settings = model.config.get_text_config()
    if pooling.splade is not None:
        head: Head = Splade(IdentityHead(), settings.vocab_size, pooling.splade)
        return Headed(model, head, inputs, states="logits", with_positions=False).eval()
    with_positions = takes_positions(model)
    hidden = getattr(settings, "hidden_size", pooling.width)
    head = head_of(pooling, hidden, model=type(model).__name__, decoder=with_positions)
    for name, parameter in head.named_parameters():
        _fill(parameter, stored_name(name, pooling.steps), weights)
    if not pooling.rules.prompt_pooled:
        assert isinstance(head, SentenceEmbedding)
        axes: list[Axis] = [BATCH, SEQUENCE]
        inputs.append(InputSpec(name=PROMPT_MASK, dtype="int64", axes=axes, role="flags", size=2, default=0))
    return Headed(model, head, inputs, with_positions=with_positions).eval()


class Difference(Head):
    """The difference of two logits at the last token of a text, or its single logit."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs = [OutputSpec(name="logits", axes=[BATCH, 1])]

    def forward(self, x_BTV: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, ...]:
        x_BV = last_token(x_BTV, mask_BT)
        return (x_BV if x_BV.shape[1] == 1 else x_BV[:, :1] - x_BV[:, 1:],)


def ranked(label: str, model: Any, answers: Answers) -> Headed:
    """A generating ``model`` as a reranker: the logit of one token minus the logit of another.

    Keeps these rows of the projection to the vocabulary only. Raises PosexportError for ids outside the vocabulary, and
    for models in which these logits depend on other rows.
    """
    inputs = _inputs(label, model)
    rows = [answers.true] if answers.false is None else [answers.true, answers.false]
    check_answers(answers, model.config.get_text_config().vocab_size)
    texts = example(inputs, axis_sizes(inputs, {BATCH: 2, SEQUENCE: 7}))
    projection = model.get_output_embeddings()
    with torch.no_grad():
        full = model(**texts, return_dict=True)["logits"][..., rows]
        cut = nn.Linear(projection.in_features, len(rows), bias=projection.bias is not None)
        cut.weight.copy_(projection.weight[rows])
        if projection.bias is not None:
            cut.bias.copy_(projection.bias[rows])
        model.set_output_embeddings(cut)
        reduced = model(**texts, return_dict=True)["logits"]
    if reduced.shape != full.shape or not bool((reduced - full).abs().max() <= _ROUNDING * full.abs().max()):
        raise PosexportError(
            f"{label}: {type(model).__name__} makes a logit of more than its row of the projection to the vocabulary, "
            "so two rows do not give a score; choose --task text-generation"
        )
    return Headed(model, Difference(), inputs, states="logits", with_positions=takes_positions(model)).eval()


def takes_positions(model: Any) -> bool:
    """Whether ``position_ids`` are computed from the attention mask: for decoders, which have no token types."""
    return {POSITIONS, MASK} <= forward_parameters(model) and TYPES not in forward_parameters(model)


def _inputs(label: str, model: Any) -> list[InputSpec]:
    """The inputs of a model that reads texts only. Raises PosexportError for other models."""
    names, kind = forward_parameters(model), type(model).__name__
    if model.config.is_encoder_decoder or IDS not in names or names & {PIXELS, SOUND}:
        what = "is an encoder-decoder" if model.config.is_encoder_decoder else "reads more than texts"
        raise PosexportError(f"{label}: {kind} {what}, and is not pooled through transformers; use --task features")
    return text_inputs(model, names - {TYPES} if takes_positions(model) else names)


def _fill(parameter: nn.Parameter, name: str, weights: Weights) -> None:
    if name not in weights.shapes:
        raise PosexportError(f"{weights.label} has no tensor {name}; download the checkpoint again")
    if weights.shapes[name] != list(parameter.shape):
        raise PosexportError(
            f"{weights.label}: {name} has the shape {weights.shapes[name]}, its configuration says "
            f"{list(parameter.shape)}; download the checkpoint again"
        )
    with torch.no_grad():
        parameter.copy_(weights.read(name))
