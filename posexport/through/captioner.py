"""BLIP's captioning as an encoder-decoder: its image encoder, and its decoder of texts (arXiv:2201.12086)."""

from typing import Any

from torch import Tensor, nn


class Captioner(nn.Module):
    """``model`` with the methods and arguments of transformers' encoder-decoders."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def get_encoder(self) -> nn.Module:
        encoder: nn.Module = self.model.vision_model
        return encoder

    def get_decoder(self) -> nn.Module:
        decoder: nn.Module = self.model.text_decoder
        return decoder

    def forward(
        self,
        decoder_input_ids: Tensor,
        pixel_values: Tensor | None = None,
        encoder_outputs: Any = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        **_: Any,
    ) -> Any:
        states = encoder_outputs or self.model.vision_model(pixel_values=pixel_values, return_dict=True)
        return self.model.text_decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            position_ids=decoder_position_ids,
            encoder_hidden_states=states.last_hidden_state,
            use_cache=False,
            return_dict=True,
        )
