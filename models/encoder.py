"""An encoder of the BERT family, with any position encoding.

Devlin et al., "BERT" (arXiv:1810.04805). Its descendants differ in `EncoderConfig`: where normalisations are and of
which kind, embeddings narrower than the model, layers that share their weights, projections without biases, gated
feed-forwards (ModernBERT, T5's encoder).

Shape letters: B batch, T tokens, S tokens attended to, C model size.
"""

from dataclasses import dataclass, field

import msgspec
from torch import Tensor, nn

from posexport.base.spec import BATCH, ENCODER_SEQUENCE, SEQUENCE, Axis, InputSpec, LengthContract, OutputSpec
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.models.definition import HeadedModel, limits_of, text_inputs, together
from posexport.models.embeddings import Embeddings, TypedEmbeddingConfig
from posexport.models.layer import EncoderLayer, Memory, TransformerConfig
from posexport.nn.attention import additive
from posexport.nn.collected import reached
from posexport.nn.feed_forward import TokenConvolution
from posexport.nn.heads import Head
from posexport.nn.norms import normalisation
from posexport.nn.position_ids import PositionIds, SequentialPositionIds


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """Embeddings with token types and a stack of layers, which may share their weights."""

    embedding: TypedEmbeddingConfig = field(default_factory=TypedEmbeddingConfig)
    #: the layers in turn use these many sets of weights (None: as many as layers; ALBERT: 1)
    layer_groups: int | None = None
    #: layers of a group, which run one after the other each time that the group is used (ALBERT)
    layer_group_size: int = 1
    #: the first layer's attention has a normalisation
    first_norm: bool = True
    #: inputs and outputs have the sequence before the batch, as PyTorch's transformer modules do
    sequence_first: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer_groups is not None and not 1 <= self.layer_groups <= self.layers:
            raise PosexportError(f"layer_groups must be from 1 to layers={self.layers}, got {self.layer_groups}")
        sets, size = self.layer_groups or self.layers, self.layer_group_size
        if size < 1 or sets % size or self.layers % size:
            raise PosexportError(
                f"layer_group_size must divide layer_groups={sets} and layers={self.layers}, got {size}"
            )

    def weights_of(self, layer: int) -> int:
        """Which set of weights a layer has."""
        size = self.layer_group_size
        groups, turns = (self.layer_groups or self.layers) // size, self.layers // size
        return layer // size * groups // turns * size + layer % size


class Encoder(nn.Module):
    """Embeddings and layers: token ids [B, T] to hidden states [B, T, C]."""

    def __init__(
        self,
        config: EncoderConfig,
        encoding: Encoding,
        position_ids: PositionIds | None = None,
        *,
        at_input: Encoding | None = None,
        convolution: TokenConvolution | None = None,
    ) -> None:
        """``at_input``: acts on the embeddings, in addition to an ``encoding`` in every layer (DeBERTa).

        ``convolution``: of the embeddings, is added to what the first layer gives.
        """
        super().__init__()
        self.config = config
        layer = config.layer
        # with separate parameters in every layer the encoding is only a template: a copy here would be unused weight
        shared = at_input if encoding.per_layer else encoding
        numbering = position_ids or SequentialPositionIds()
        self.embeddings = Embeddings(config.embedding, layer.norm, layer.hidden, shared, numbering)
        groups = config.layer_groups or config.layers
        self.groups = nn.ModuleList(
            EncoderLayer(layer, encoding, index, first_norm=config.first_norm) for index in range(groups)
        )
        self.final_norm = normalisation(layer.norm, layer.hidden) if config.final_norm else None
        self.convolution = convolution

    @property
    def encodings(self) -> list[Encoding]:
        """The encoding of every layer: one and the same where all share it."""
        return [layer.attention.encoding for layer in self.groups if isinstance(layer, EncoderLayer)]

    @property
    def encoding(self) -> Encoding:
        return self.encodings[0]

    def forward(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor | None = None,
        types_BT: Tensor | None = None,
        memory_BSC: Tensor | None = None,
        memory_mask_BS: Tensor | None = None,
    ) -> Tensor:
        x_BTC: Tensor
        x_BTC, positions = self.embeddings(ids_BT, types_BT, mask_BT)
        mask_B11T = additive(mask_BT, x_BTC)
        memory = None
        if memory_BSC is not None:
            counted = Positions.counted(memory_BSC.shape[1], memory_BSC.device)
            memory = Memory(memory_BSC, additive(memory_mask_BS, x_BTC), counted)
        for index in range(self.config.layers):
            reached(index, x_BTC)
            group = self.groups[self.config.weights_of(index)]
            before_BTC, x_BTC = x_BTC, group(x_BTC, mask_B11T, positions, memory)
            if index == 0 and self.convolution is not None:
                x_BTC = self.convolution(before_BTC, x_BTC, mask_BT)
        if self.final_norm is not None:
            x_BTC = self.final_norm(x_BTC)
        reached(self.config.layers, x_BTC)
        return x_BTC


class EncoderModel(HeadedModel):
    """An encoder with a head, called with the inputs' public names."""

    encoder: Encoder

    def __init__(self, encoder: Encoder, head: Head) -> None:
        super().__init__(encoder, head)
        if encoder.embeddings.encoding is not None:
            self.overhead = encoder.embeddings.position_ids.offset

    @property
    def encoding(self) -> Encoding:
        return self.encoder.encoding

    @property
    def shift_invariant(self) -> bool:
        at_input = self.encoder.embeddings.encoding
        return super().shift_invariant and (at_input is None or at_input.shift_invariant)

    @property
    def outputs(self) -> list[OutputSpec]:
        """The head's outputs, with the sequence axis first if `sequence_first`."""
        return [msgspec.structs.replace(spec, axes=self._axes(spec.axes)) for spec in self.head.outputs]

    @property
    def limits(self) -> LengthContract:
        """The encoding's, with the boundaries of all layers' encodings where they differ.

        Also for the sequence that is attended to, where the encoding's terms measure distances to it.
        """
        position_ids = self.encoder.embeddings.position_ids
        at_input = self.encoder.embeddings.encoding
        limits = limits_of(self.encoding, position_ids)
        boundaries = {b for encoding in self.encoder.encodings for b in limits_of(encoding, position_ids).boundaries}
        limits = msgspec.structs.replace(limits, boundaries=sorted(boundaries))
        if at_input is not None:
            limits = together([limits, limits_of(at_input, position_ids)])
        between_tokens = bool(self.encoding.attention_hooks)
        if self.encoder.config.layer.cross_attention and between_tokens:
            return msgspec.structs.replace(limits, limited_axes=[*limits.limited_axes, ENCODER_SEQUENCE])
        return limits

    @property
    def inputs(self) -> list[InputSpec]:
        config = self.encoder.config
        specs = text_inputs(config.vocab, config.padding_id, config.embedding.types)
        if config.layer.cross_attention:
            axes: list[Axis] = [BATCH, ENCODER_SEQUENCE]
            states: list[Axis] = [*axes, config.hidden]
            specs.append(InputSpec(name="encoder_hidden_states", dtype=MODEL_DTYPE.name, axes=states, role="values"))
            specs.append(InputSpec(name="encoder_attention_mask", dtype="int64", axes=axes, role="mask"))
        return [msgspec.structs.replace(spec, axes=self._axes(spec.axes)) for spec in specs]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        tensors = [input_ids, attention_mask, token_type_ids, encoder_hidden_states, encoder_attention_mask]
        if self.encoder.config.sequence_first:
            tensors = [None if tensor is None else tensor.transpose(0, 1) for tensor in tensors]
        outputs: tuple[Tensor, ...] = self.head(self.encoder(*tensors), tensors[1])
        if self.encoder.config.sequence_first:
            by_spec = zip(outputs, self.head.outputs, strict=True)
            outputs = tuple(y.transpose(0, 1) if spec.axes[1] == SEQUENCE else y for y, spec in by_spec)
        return outputs

    def _axes(self, axes: list[Axis]) -> list[Axis]:
        """The axes, with the sequence before the batch where the configuration says so."""
        swapped = self.encoder.config.sequence_first and axes[1] in (SEQUENCE, ENCODER_SEQUENCE)
        return [axes[1], axes[0], *axes[2:]] if swapped else axes
