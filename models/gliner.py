"""GLiNER: finds entities in a text, for labels that are written before the text.

Zaratiana et al., "GLiNER" (arXiv:2311.08526), section 2: a score for every span of at most K words and every label.
knowledgator's GLiNER multi-task (arXiv:2406.12925) scores words instead: whether a word begins, ends or is inside an
entity. An encoder reads labels and text as one row. The state of a word is that of its first or last token, the state
of a label that of its marker.

gliner concatenates the states of a pair and applies a linear layer to it. Here the linear layer is applied to each
state before the pairs are formed, so that a pair of a word and a width costs one addition and one activation.

Shape letters: B batch, T tokens, W words, K widths of a span, N labels, C channels, E inner channels.
"""

import torch
from torch import Tensor, nn

from posexport.base.spec import BATCH, LABELS, WORDS, Axis, InputSpec, OutputSpec, ProofPlan
from posexport.models.definition import Definition
from posexport.models.over_encoder import OverEncoder
from posexport.nn.lstm import PackedLSTM
from posexport.nn.rows import tokens_at

WORD_INDICES, LABEL_INDICES = "word_indices", "label_indices"
#: (number of words, number of labels) of the proof
_PROVEN = ((1, 1), (7, 3), (26, 2), (3, 11), (2, 1))


def two_layers(size: int, inner: int, out: int) -> nn.Sequential:
    """A two-layer MLP with ReLU; the linear layers have the indices 0 and 2, as in the checkpoint."""
    return nn.Sequential(nn.Linear(size, inner), nn.ReLU(), nn.Linear(inner, out))


class SpanScores(nn.Module):
    """Logits [B, W, K, N] of every span of up to ``widths`` words, from the states of its first and last word.

    A span that ends after the last word has the logits of the first word, as in gliner.

    Args:
        size: C.
        widths: K.
        inner: E of the MLP that follows the concatenation of both ends (``markerV0``); None: one linear layer follows
            (``marker``).
        ends: E of the MLPs of the ends.
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
        # the second layer is applied to the labels: no span needs a vector of C channels
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
    """Logits [B, W, N, 3] of every word and label: the word begins, ends or is inside an entity of the label.

    Args:
        size: C.
        out: number of logits of a pair.
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
    """GLiNER: an encoder, the states of words and labels, and the scores of their pairs.

    Args:
        encoder: maps token ids and their mask to hidden states.
        scores: maps the states of words and labels to logits.
        project: maps the encoder's channels to C; None if they are equal.
        lstm: applied to the states of words; None if the model has no LSTM.
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
        """Ids and mask, and the indices of the tokens that represent words and labels."""
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
