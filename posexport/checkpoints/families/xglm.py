"""XGLM: fairseq's sines and cosines, which begin at position 2, and token embeddings times the root of their width.

Lin et al., "Few-shot Learning with Multilingual Language Models" (arXiv:2112.10668), released code. Any length is
accepted.
"""

import math

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import decoder, fairseq
from posexport.checkpoints.mapping import Plan
from posexport.encodings.sinusoidal import Sinusoidal
from posexport.errors import PosexportError

#: what the first token's position counts as
OFFSET = 2
_ONCE = {"token": "model.embed_tokens", "final_norm": "model.layer_norm"}


def _build(config: Config, task: str) -> Plan:
    hidden, vocab = config.size("hidden_size"), config.size("vocab_size")
    padding = config.size("pad_token_id", 1, least=0, most=vocab - 1)
    if padding >= OFFSET:
        raise PosexportError(
            f"{config.label} says pad_token_id = {padding}; transformers then gives position {padding - OFFSET} the "
            f"padding's zeros, which is not read: it must be below {OFFSET}"
        )
    settings = decoder.settings(
        config,
        tied=True,
        feedforward=config.size("ffn_dim"),
        activation=config.activation("activation_function", "gelu"),
        embedding_scale=math.sqrt(hidden) if config.flag("scale_embedding", True) else 1.0,
        eps=1e-5,
        padding_id=padding,
    )
    with config.named_in_errors():
        encoding = Sinusoidal(hidden=hidden, layout="half", timescales="tensor2tensor", offset=OFFSET)
    return decoder.plan(
        task, settings, encoding, decoder.Names(once=_ONCE, layer=fairseq.DECODER_LAYER, stem="model.layers.{i}")
    )


XGLM = decoder.family(
    "xglm",
    _build,
    prefix="model",
    roots=("embed_tokens.", "layers.", "layer_norm."),
    beside={"embed_positions.weights": None},
    spellings={
        "hidden_size": ("d_model", "hidden_size"),
        "num_attention_heads": ("attention_heads", "num_attention_heads"),
        "num_hidden_layers": ("num_layers", "num_hidden_layers"),
    },
)
