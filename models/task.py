"""An encoder with a head, called with the inputs' public names."""

from torch import Tensor, nn

from posexport.models.encoder import Encoder
from posexport.models.heads import Head
from posexport.spec import BATCH, ENCODER_SEQUENCE, SEQUENCE, InputSpec


class EncoderModel(nn.Module):
    """``forward`` takes the inputs that `inputs` lists, by name, and returns the head's outputs as a tuple."""

    def __init__(self, encoder: Encoder, head: Head) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    @property
    def inputs(self) -> list[InputSpec]:
        """The inputs, in order."""
        config = self.encoder.config
        axes: list[str | int] = [BATCH, SEQUENCE]
        found = [
            InputSpec(
                name="input_ids", dtype="int64", axes=axes, role="tokens", size=config.vocab, padding=config.padding_id
            ),
            InputSpec(name="attention_mask", dtype="int64", axes=axes, role="mask"),
        ]
        if config.types > 1:
            found.append(InputSpec(name="token_type_ids", dtype="int64", axes=axes, role="types", size=config.types))
        if config.cross_attention:
            memory: list[str | int] = [BATCH, ENCODER_SEQUENCE]
            states = [*memory, config.hidden]
            found.append(InputSpec(name="encoder_hidden_states", dtype="float32", axes=states, role="values"))
            found.append(InputSpec(name="encoder_attention_mask", dtype="int64", axes=memory, role="mask"))
        return found

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        x_BTC = self.encoder(input_ids, attention_mask, token_type_ids, encoder_hidden_states, encoder_attention_mask)
        outputs: tuple[Tensor, ...] = self.head(x_BTC, attention_mask)
        return outputs
