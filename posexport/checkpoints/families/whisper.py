"""Whisper: a spectrogram of 30 seconds in, text out; normalisation before each sublayer, keys without biases.

Radford et al. (arXiv:2212.04356), released code. The encoder's positions are sines, which the checkpoint's table holds
and from which they are read; the decoder's are learned.
"""

from typing import Any

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families.fairseq import half, named_layers, seq2seq_family
from posexport.checkpoints.mapping import Origin, Plan, origin, origins_of
from posexport.encodings.absolute import Absolute
from posexport.models.decoder import Decoder, DecoderConfig, LanguageModel
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.models.spectrogram import SpectrogramConfig, SpectrogramEncoder, SpectrogramModel

RECOGNITION = "automatic-speech-recognition"
_FIRST = {"encoder.first": "model.encoder.conv1", "encoder.second": "model.encoder.conv2"}
_TOKENS = ("model.decoder.embed_tokens.weight", "proj_out.weight")


def _build(config: Config, task: str) -> Plan:
    config.only("the head is the table of tokens", tie_word_embeddings=True)
    hidden, vocab = config.size("d_model"), config.size("vocab_size")
    arrangement: dict[str, Any] = {"norm": "pre", "key_bias": False, "final_norm": True}
    modules = named_layers("encoder", "layers", config) | named_layers("decoder", "layers", config)
    modules |= {path: origin(stored) for path, stored in _FIRST.items()}
    modules["encoder.shared"] = modules["encoder.embeddings.encoding"]
    before = SpectrogramConfig.of(
        frequencies=config.size("num_mel_bins", 80),
        tokens=config.size("max_source_positions", 1500),
        **half(config, "encoder"),
        **arrangement,
    )
    after = DecoderConfig.of(
        vocab=vocab,
        padding_id=config.size("pad_token_id", 0, least=0, most=vocab - 1),
        cross_attention=True,
        **half(config, "decoder"),
        **arrangement,
    )
    with torch.device("meta"):
        encoder = SpectrogramEncoder(before, Absolute(max_positions=before.tokens, hidden=hidden))
        if task == "features":
            model = SpectrogramModel(encoder)
            return Plan(model, origins_of(model, modules), beside={"decoder.": "the decoder"})
        longest = config.size("max_target_positions", 448)
        decoder = Decoder(after, Absolute(max_positions=longest, hidden=hidden))
        whole = EncoderDecoderModel(encoder, decoder, LanguageModel(after, decoder.token))
    return Plan(whole, origins_of(whole, modules, {"decoder.token.weight": Origin(_TOKENS)}))


WHISPER = seq2seq_family("whisper", _build, "ForConditionalGeneration", RECOGNITION)
