"""BART: learned positions that begin at the third row of both tables; normalisation after each sublayer.

Lewis et al. (arXiv:1910.13461), released code. Positions are counted by place, padding too: pad texts on the right.
"""

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families.fairseq import CLASSIFICATION, seq2seq_family, text_plan
from posexport.checkpoints.mapping import Plan
from posexport.encodings.learned import Learned

#: rows of the tables before position 0
OFFSET = 2


def _build(config: Config, task: str) -> Plan:
    # switches of older files
    config.only(
        "its normalisations are BART's",
        normalize_before=False,
        normalize_embedding=True,
        add_final_layer_norm=False,
        static_position_embeddings=False,
    )
    return text_plan(config, task, positions(config), padding=1, norm="post", embedding_norm=True, final_norm=False)


def positions(config: Config) -> tuple[Learned, Learned]:
    longest, hidden = config.size("max_position_embeddings"), config.size("d_model")
    with torch.device("meta"):
        encoder, decoder = (Learned(max_positions=longest, hidden=hidden, offset=OFFSET) for _ in range(2))
    return encoder, decoder


BART = seq2seq_family("bart", _build, "ForConditionalGeneration", more={"ForSequenceClassification": CLASSIFICATION})
