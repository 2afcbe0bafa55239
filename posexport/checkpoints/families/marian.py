"""Marian: all sines, then all cosines of the position, in encoder and decoder; normalisation after each sublayer.

Junczys-Dowmunt et al. (arXiv:1804.00344), released code. transformers keeps the sines in tables of
``max_position_embeddings`` rows, where inputs end. Positions are counted by place, padding too: pad texts on the right.
Without ``share_encoder_decoder_embeddings`` encoder and decoder have separate token embeddings, and the head
has the decoder's or, without ``tie_word_embeddings``, a separate weight.
"""

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families.fairseq import seq2seq_family, text_plan
from posexport.checkpoints.mapping import Constant, Plan
from posexport.encodings.sinusoidal import Sinusoidal


def _build(config: Config, task: str) -> Plan:
    longest, hidden = config.size("max_position_embeddings"), config.size("d_model")
    encoding = Sinusoidal(hidden=hidden, layout="half")
    # files in half precision have it rounded, bfloat16 to eight bits
    table = Constant(encoding.vectors(torch.arange(longest), torch.float32), atol=1e-4, rtol=2**-8)
    constants = {f"model.{half}.embed_positions.weight": table for half in ("encoder", "decoder")}
    shared = config.flag("share_encoder_decoder_embeddings", True)
    return text_plan(
        config,
        task,
        (encoding, Sinusoidal(hidden=hidden, layout="half")),
        constants=constants,
        longest=longest,
        shared=shared,
        tied=shared or config.flag("tie_word_embeddings", True),
        decides=("share_encoder_decoder_embeddings", "tie_word_embeddings", "decoder_vocab_size"),
        padding=config.size("vocab_size") - 1,
        norm="post",
        embedding_norm=False,
        final_norm=False,
    )


MARIAN = seq2seq_family("marian", _build, "MTModel")
