"""Entities of a text by labels that are written before it.

Zaratiana et al., "GLiNER" (arXiv:2311.08526), section 2: a score for every span of at most K words and every label.
The form by tokens is that of knowledgator's GLiNER multi-task (arXiv:2406.12925): whether a word begins, ends and is
inside an entity. An encoder reads labels and text as one row; a word is its first or last token, a label its marker.

The linear layers behind a sum are computed before it where the library computes them on pairs, so that the cost of a
pair of a word and a width is one activation.

Shape letters: B batch, T tokens, W words, K widths of a span, N labels, C channels, E inner channels.
"""

import torch
from torch import Tensor, nn

from posexport.definition.definition import Definition
from posexport.models.over_encoder import OverEncoder
from posexport.nn.lstm import PackedLSTM
from posexport.nn.rows import tokens_at
from posexport.spec import BATCH, LABELS, WORDS, Axis, InputSpec, OutputSpec, ProofPlan

WORD_INDICES, LABEL_INDICES = "word_indices", "label_indices"
#: words and labels to prove at
_PROVEN = ((1, 1), (7, 3), (26, 2), (3, 11), (2, 1))


def two_layers(size: int, inner: int, out: int) -> nn.Sequential:
    """A projection with a hidden layer; its linear layers are 0 and 2."""
    return nn.Sequential(nn.Linear(size, inner), nn.ReLU(), nn.Linear(inner, out))


class SpanScores(nn.Module):
    """Logits of every span of up to ``widths`` words, from its first and its last word, [B, W, K, N].

    A span that ends behind the last word has the logits of the first word, as the library computes it.

    Args:
        size: C.
        widths: K.
        inner: E of the projection behind both ends (``markerV0``); None: it is one linear layer (``marker``).
        ends: E of the projections of the ends.
    """

    def __init__(self, size: int, widths: int, *, inner: int | None, ends: int) -> None:
        super().__init__()
        self.widths, self.size = widths, size
        self.start, self.end = two_layers(size, ends, size), two_layers(size, ends, size)
        self.joined = nn.Linear(2 * size, size if inner is None else inner)
        self.out = None if inner is None else nn.Linear(inner, size)
        self.label = two_layers(size, 4 * size, size)
        self.outputs = [OutputSpec(name="logits", axes=[BATCH, WORDS, widths, LABELS])]

    def forward(self, words_BWC: Tensor, labels_BNC: Tensor, count_B: Tensor) -> Tensor:
        weight_E2C = self.joined.weight
        start_BWE = self.start(words_BWC).relu() @ weight_E2C[:, : self.size].mT + self.joined.bias
        end_BWE = self.end(words_BWC).relu() @ weight_E2C[:, self.size :].mT
        # what a label adds to the inner channels, so that no span has a vector of C channels
        label_BNC = self.label(labels_BNC)
        if self.out is not None:
            label_BNE, bias_BN = label_BNC @ self.out.weight, label_BNC @ self.out.bias
        else:
            label_BNE, bias_BN = label_BNC, torch.zeros_like(label_BNC[..., 0])
        length = words_BWC.shape[1]
        first_W1 = torch.arange(length, device=words_BWC.device)[:, None]
        last_WK = first_W1 + torch.arange(self.widths, device=words_BWC.device)
        batch, inner = end_BWE.shape[0], end_BWE.shape[2]
        ends_BWKE = end_BWE.index_select(1, last_WK.clamp(max=length - 1).flatten())
        spans_BWKE = start_BWE[:, :, None] + ends_BWKE.reshape(batch, length, self.widths, inner)
        if self.out is not None:
            spans_BWKE = spans_BWKE.relu()
        logits_BWKN = (spans_BWKE.flatten(1, 2) @ label_BNE.mT + bias_BN[:, None]).reshape(
            batch, length, self.widths, labels_BNC.shape[1]
        )
        inside_BWK1 = (last_WK < count_B[:, None, None])[..., None]
        return torch.where(inside_BWK1, logits_BWKN, logits_BWKN[:, :1, :1])


class TokenScores(nn.Module):
    """Logits of every word and label, [B, W, N, 3]: that it begins, ends and is inside an entity of the label.

    Args:
        size: C.
        out: logits of a pair.
    """

    def __init__(self, size: int, out: int = 3) -> None:
        super().__init__()
        self.size = size
        self.word, self.label = nn.Linear(size, 2 * size), nn.Linear(size, 2 * size)
        self.joined, self.out = nn.Linear(3 * size, 4 * size), nn.Linear(4 * size, out)
        self.outputs = [OutputSpec(name="logits", axes=[BATCH, WORDS, LABELS, out])]

    def forward(self, words_BWC: Tensor, labels_BNC: Tensor, count_B: Tensor | None = None) -> Tensor:
        del count_B
        words, labels = self.word(words_BWC).chunk(2, -1), self.label(labels_BNC).chunk(2, -1)
        parts = torch.split(self.joined.weight, self.size, 1)
        pair_BWNC = words[1][:, :, None] * labels[1][:, None]
        inner_BWNE = (words[0] @ parts[0].mT)[:, :, None] + (labels[0] @ parts[1].mT + self.joined.bias)[:, None]
        logits: Tensor = self.out((inner_BWNE + pair_BWNC @ parts[2].mT).relu())
        return logits


class Gliner(OverEncoder):
    """An encoder, words and labels from its tokens, and a score of both.

    Args:
        encoder: token ids and their mask to hidden states.
        scores: of words and labels.
        project: the encoder's channels to C; None: they are as many.
        lstm: of words; None: there is none.
    """

    ordered = True

    def __init__(
        self,
        encoder: Definition,
        scores: SpanScores | TokenScores,
        *,
        project: nn.Linear | None = None,
        lstm: PackedLSTM | None = None,
    ) -> None:
        super().__init__(encoder)
        self.scores, self.project, self.lstm = scores, project, lstm

    @property
    def inputs(self) -> list[InputSpec]:
        """Ids and mask, and which tokens stand for words and for labels."""
        axes: dict[str, list[Axis]] = {WORD_INDICES: [BATCH, WORDS], LABEL_INDICES: [BATCH, LABELS]}
        return [
            *self.encoder_inputs,
            *(InputSpec(name=name, dtype="int64", axes=axes[name], role="indices") for name in axes),
        ]

    @property
    def outputs(self) -> list[OutputSpec]:
        return self.scores.outputs

    @property
    def plan(self) -> ProofPlan:
        return ProofPlan(proof_sizes=[{WORDS: words, LABELS: labels} for words, labels in _PROVEN])

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        word_indices: Tensor | None = None,
        label_indices: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        assert word_indices is not None
        assert label_indices is not None
        x_BTC: Tensor = self.encoder(input_ids, attention_mask)[0]
        if self.project is not None:
            x_BTC = self.project(x_BTC)
        words_BWC, count_B = tokens_at(x_BTC, word_indices), (word_indices >= 0).sum(1)
        if self.lstm is not None:
            words_BWC = self.lstm(words_BWC, count_B)
        return (self.scores(words_BWC, tokens_at(x_BTC, label_indices), count_B),)
