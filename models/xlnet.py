"""XLNet as an encoder: attention in both directions, relative positions, and a term for tokens of the same segment.

Yang et al., "XLNet" (arXiv:1906.08237), sections 2.4 and 2.5, as released. Only the content stream is computed, which
is all that remains once nothing is left to predict; no memory, no permutation.

Shape letters: B batch, T tokens, H heads, D head size, C model size.
"""

import torch
from torch import Tensor, nn

from posexport.base.spec import InputSpec, OutputSpec
from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.models.definition import Definition, text_inputs
from posexport.models.encoder import EncoderConfig
from posexport.models.layer import Layer, LayerConfig
from posexport.nn.attention import Scoring, additive
from posexport.nn.heads import Head, SequenceClassification
from posexport.nn.projections import EncodedAttention

#: token types that its tokenizer gives: first text, second text, classification token, padding
SEGMENTS = 4


class SegmentAttention(EncodedAttention):
    """Attention that adds ``(q_i + b) . (same - other)`` to the scores of keys in the query's segment, scaled.

    ``segments`` is [2, H, D], the vectors ``same`` and ``other``; ``segment_bias`` (b) is [H, D]. The paper adds
    ``(q_i + b) . other`` to the keys of other segments as well; here it is subtracted from all keys of a query, which
    does not change the softmax. So a text of one segment is computed the same with types and without.
    """

    def __init__(self, config: LayerConfig, encoding: Encoding) -> None:
        heads, size = config.attention.heads, config.head_size
        super().__init__(config.hidden, heads, size, bias=config.attention.bias)
        self.scale = (size * encoding.score_terms) ** -0.5
        self.encoding, self.scoring = encoding, Scoring()
        self.segments = nn.Parameter(torch.empty(2, heads, size).normal_(std=0.02))
        self.segment_bias = nn.Parameter(torch.empty(heads, size).normal_(std=0.02))

    def forward(
        self, x_BTC: Tensor, mask_B11T: Tensor | None, same_B1TT: Tensor | None, positions: Positions
    ) -> Tensor:
        """Self-attention of ``x_BTC``; ``same_B1TT`` is true where two tokens are of one segment, None: all are."""
        q_BHTD, k_BHTD, v_BHTD = self.queries(x_BTC), self.keys(x_BTC), self.values(x_BTC)
        term_BHTT = None
        if same_B1TT is not None:
            difference_H1D = (self.segments[0] - self.segments[1])[:, None]
            gain_BHT1 = ((q_BHTD + self.segment_bias[:, None]) * difference_H1D).sum(-1, keepdim=True) * self.scale
            term_BHTT = torch.where(same_B1TT, gain_BHT1, torch.zeros((), dtype=x_BTC.dtype, device=x_BTC.device))
        return self.attended(x_BTC, q_BHTD, k_BHTD, v_BHTD, mask_B11T, positions, positions, pairs=term_BHTT)


class XLNet(Definition):
    """Token ids, mask and segments to a head's outputs; ``encoding`` acts through its scores alone."""

    def __init__(self, config: EncoderConfig, encoding: Encoding, head: Head) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(
            Layer(config.layer, SegmentAttention(config.layer, encoding.in_layer(index)))
            for index in range(config.layers)
        )
        self.head = head
        self.reads_first_token = head.reads_first_token

    @property
    def encoding(self) -> Encoding:
        attention = self.layers[0].attention
        assert isinstance(attention, SegmentAttention)
        return attention.encoding

    @property
    def outputs(self) -> list[OutputSpec]:
        return self.head.outputs

    @property
    def inputs(self) -> list[InputSpec]:
        return text_inputs(self.config.vocab, self.config.padding_id, SEGMENTS)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        x_BTC: Tensor = self.token(input_ids)
        same_B1TT = None
        if token_type_ids is not None:
            same_B1TT = (token_type_ids[:, :, None] == token_type_ids[:, None, :])[:, None]
            if attention_mask is not None:
                # nothing is added to a masked score, which half precision could take out of its range
                same_B1TT = same_B1TT & (attention_mask != 0)[:, None, None, :]
        positions = Positions.counted(input_ids.shape[1], input_ids.device)
        mask_B11T = additive(attention_mask, x_BTC)
        for layer in self.layers:
            x_BTC = layer(x_BTC, mask_B11T, same_B1TT, positions)
        outputs: tuple[Tensor, ...] = self.head(x_BTC, attention_mask)
        return outputs


class LastTokenClassification(SequenceClassification):
    """Logits over labels from the last real token: dense, activation, linear.

    transformers reads the last slot, which is the same with padding on the left, as XLNet's tokenizer puts
    it; padding on the right makes it read a padded token.
    """

    reads_first_token = False

    def forward(self, x_BTC: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, ...]:
        if mask_BT is None:
            return super().forward(x_BTC[:, -1:], None)
        place_T = torch.arange(x_BTC.shape[1], device=x_BTC.device)
        last_B = ((mask_BT != 0) * place_T).amax(1)
        last_B1C = x_BTC.gather(1, last_B[:, None, None].expand(-1, 1, x_BTC.shape[2]))
        return super().forward(last_B1C, None)
