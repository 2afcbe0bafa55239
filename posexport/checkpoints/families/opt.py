"""OPT: learned positions that begin at the table's third row, normalisation before or after each sublayer.

Zhang et al., "OPT" (arXiv:2205.01068), released code. ``word_embed_proj_dim`` below ``hidden_size`` gives narrower
token embeddings, projected to the model's width before positions are added, and hidden states projected back. Some
older files have no final normalisation (``_remove_final_layer_norm``).
"""

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import decoder, fairseq
from posexport.checkpoints.mapping import Plan
from posexport.encodings.learned import Learned

#: rows of the table before position 0
OFFSET = 2
_ONCE = {
    "token": "model.decoder.embed_tokens",
    "encoding": "model.decoder.embed_positions",
    "project_in": "model.decoder.project_in",
    "project_out": "model.decoder.project_out",
    "final_norm": "model.decoder.final_layer_norm",
}


def _build(config: Config, task: str) -> Plan:
    hidden, vocab = config.size("hidden_size"), config.size("vocab_size")
    before = config.flag("do_layer_norm_before", True)
    bias = config.flag("enable_bias", True)
    width = config.size_or("word_embed_proj_dim", hidden)
    settings = decoder.settings(
        config,
        tied=True,
        feedforward=config.size("ffn_dim"),
        embedding=width if width != hidden else None,
        project_first=True,
        activation=config.activation("activation_function", "relu"),
        attention_bias=bias,
        feedforward_bias=bias,
        norm="pre" if before else "post",
        norm_weight=config.flag("layer_norm_elementwise_affine", True),
        final_norm=before and not config.flag("_remove_final_layer_norm", False),
        eps=1e-5,
        padding_id=config.size("pad_token_id", 1, least=0, most=vocab - 1),
    )
    longest = config.size("max_position_embeddings")
    with config.named_in_errors(), torch.device("meta"):
        encoding = Learned(max_positions=longest, hidden=hidden, offset=OFFSET)
    names = decoder.Names(once=_ONCE, layer=fairseq.DECODER_LAYER, stem="model.decoder.layers.{i}")
    return decoder.plan(task, settings, encoding, names)


OPT = decoder.family("opt", _build, prefix="model", roots=("decoder.",))
