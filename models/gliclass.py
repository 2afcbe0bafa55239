"""Labels of a text that are written beside it.

Stepanov et al., "GLiClass: Generalist Lightweight Model for Sequence Classification Tasks" (arXiv:2508.07662), the
uni-encoder. An encoder reads labels and text as one row; a label is its marker, or the mean over its tokens, the text
is the first token or a mean, and a score compares both. The library also averages over the padding of its batch; here
padding changes nothing, as in its batches of one text.

Shape letters: B batch, T tokens, N labels, C channels.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from posexport.base.spec import BATCH, LABELS, Axis, InputSpec, OutputSpec, ProofPlan
from posexport.models.definition import Definition
from posexport.models.gliner import LABEL_INDICES, TokenScores
from posexport.models.over_encoder import OverEncoder
from posexport.nn.feed_forward import activation
from posexport.nn.rows import tokens_at

TEXT_INDICES = "text_indices"
#: labels to prove at
_PROVEN = (1, 3, 11, 26, 2)
#: added to a norm before the division
_EPS = 1e-8
Label = Literal["token", "mean", "mean behind the marker"]


class Projector(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, size: int, inner: int, activation_name: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(size, inner), nn.Linear(inner, size)
        self.activation = activation(activation_name)

    def forward(self, x_C: Tensor) -> Tensor:
        out: Tensor = self.last(self.activation(self.first(x_C)))
        return out


class DotScores(nn.Module):
    """The dot product of a text and each label."""

    def forward(self, text_BC: Tensor, labels_BNC: Tensor) -> Tensor:
        return (labels_BNC @ text_BC[..., None])[..., 0]


class WeightedScores(nn.Module):
    """The scores of `TokenScores`, of one word."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.pair = TokenScores(size, 1)

    def forward(self, text_BC: Tensor, labels_BNC: Tensor) -> Tensor:
        scores_B1N1: Tensor = self.pair(text_BC[:, None], labels_BNC)
        return scores_B1N1[:, 0, :, 0]


class JoinedScores(nn.Module):
    """A network on the text and each label side by side."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.size = size
        self.first, self.second = nn.Linear(2 * size, inner), nn.Linear(inner, inner // 2)
        self.out = nn.Linear(inner // 2, 1)

    def forward(self, text_BC: Tensor, labels_BNC: Tensor) -> Tensor:
        of_text, of_label = torch.split(self.first.weight, self.size, 1)
        joined_BNC = (text_BC @ of_text.mT + self.first.bias)[:, None] + labels_BNC @ of_label.mT
        scores: Tensor = self.out(self.second(joined_BNC.relu()).relu())
        return scores[..., 0]


class Gliclass(OverEncoder):
    """An encoder, a text and labels from its tokens, and a score of both.

    Args:
        encoder: token ids and their mask to hidden states.
        scores: of a text [B, C] and labels [B, N, C].
        projectors: of the text and of labels.
        label: how a label is read: one token, or the mean from its marker to the next, with or without the marker.
        mean: the text is the mean over tokens, not the first one.
        only_text: tokens before ``text_indices`` are no text; else all are.
        scale: vectors have norm 1, and scores are multiplied by a weight.
    """

    ordered = True

    def __init__(
        self,
        encoder: Definition,
        scores: nn.Module,
        projectors: Callable[[], Projector],
        *,
        label: Label = "token",
        mean: bool = False,
        only_text: bool = False,
        scale: bool = False,
    ) -> None:
        super().__init__(encoder)
        self.scores = scores
        self.of_text, self.of_labels = projectors(), projectors()
        self.label, self.mean, self.only_text = label, mean, only_text
        self.logit_scale = nn.Parameter(torch.ones(())) if scale else None

    @property
    def inputs(self) -> list[InputSpec]:
        """Ids and mask, the token that stands for each label, or its marker, and where the text starts."""
        labels: list[Axis] = [BATCH, LABELS]
        start: list[Axis] = [BATCH, 1]
        specs = self.encoder_inputs
        specs.append(InputSpec(name=LABEL_INDICES, dtype="int64", axes=labels, role="indices"))
        text = [InputSpec(name=TEXT_INDICES, dtype="int64", axes=start, role="indices")]
        return [*specs, *(text if self.only_text else [])]

    @property
    def outputs(self) -> list[OutputSpec]:
        return [OutputSpec(name="logits", axes=[BATCH, LABELS])]

    @property
    def plan(self) -> ProofPlan:
        return ProofPlan(proof_sizes=[{LABELS: labels} for labels in _PROVEN])

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        label_indices: Tensor | None = None,
        text_indices: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        assert label_indices is not None
        x_BTC: Tensor = self.encoder(input_ids, attention_mask)[0]
        real_BT = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        place_T = torch.arange(x_BTC.shape[1], device=x_BTC.device)
        text_BT = real_BT if text_indices is None else real_BT * (place_T >= text_indices)
        text_BC = self.of_text(self._text(x_BTC, text_BT, real_BT, text_indices))
        labels_BNC = self.of_labels(self._labels(x_BTC, real_BT, place_T, label_indices, text_indices))
        if self.logit_scale is None:
            return (self.scores(text_BC, labels_BNC),)
        text_BC, labels_BNC = (x / (x.norm(dim=-1, keepdim=True) + _EPS) for x in (text_BC, labels_BNC))
        return (self.scores(text_BC, labels_BNC) * self.logit_scale,)

    def _text(self, x_BTC: Tensor, text_BT: Tensor, real_BT: Tensor, start_B1: Tensor | None) -> Tensor:
        """The vector of the text, [B, C]: a mean is the sum over its tokens by the number of all, as in the library."""
        if self.mean:
            return (x_BTC * text_BT[..., None].to(x_BTC.dtype)).sum(1) / real_BT.sum(1, keepdim=True).to(x_BTC.dtype)
        return x_BTC[:, 0] if start_B1 is None else tokens_at(x_BTC, start_B1)[:, 0]

    def _labels(
        self, x_BTC: Tensor, real_BT: Tensor, place_T: Tensor, index_BN: Tensor, start_B1: Tensor | None
    ) -> Tensor:
        """The vectors of labels, [B, N, C]; of one without a token zeros."""
        if self.label == "token":
            return tokens_at(x_BTC, index_BN)
        # the label that a token belongs to: as many markers are at it or before it
        index_BN1 = index_BN[..., None]
        before_BNT = (index_BN1 >= 0) & (index_BN1 <= place_T)
        number_B1T = before_BNT.sum(1, keepdim=True)
        own_BNT = number_B1T == torch.arange(1, index_BN.shape[1] + 1, device=x_BTC.device)[:, None]
        own_BNT = own_BNT & (index_BN1 >= 0) & (real_BT != 0)[:, None]
        if start_B1 is not None:
            # a text that was cut off starts at 0, and bounds no label
            own_BNT = own_BNT & ((place_T < start_B1) | (start_B1 == 0))[:, None]
        if self.label == "mean behind the marker":
            own_BNT = own_BNT & (place_T != index_BN1)
        kept_BNT = own_BNT.to(x_BTC.dtype)
        return kept_BNT @ x_BTC / kept_BNT.sum(-1, keepdim=True).clamp(min=1)
