"""mBART: BART's positions and names, with normalisation before each sublayer and at the end of encoder and decoder.

Liu et al., "Multilingual Denoising Pre-training" (arXiv:2001.08210), released code. Positions are counted by place,
padding too: pad texts on the right.
"""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families.bart import positions
from posexport.checkpoints.families.fairseq import GENERATION, seq2seq_family, text_plan
from posexport.checkpoints.mapping import Plan


def _build(config: Config, task: str) -> Plan:
    # switches of older files
    config.only(
        "its normalisations are mBART's",
        normalize_before=True,
        normalize_embedding=True,
        add_final_layer_norm=True,
        static_position_embeddings=False,
    )
    if task == GENERATION:
        start, forced = (config.generation(f"{key}_token_id") for key in ("decoder_start", "forced_bos"))
        config.remark(
            f"begins generated texts with decoder_start_token_id = {start}; transformers' generate then forces "
            f"forced_bos_token_id = {forced}, the language, which is not forced here: give both as decoder_prompts"
        )
    return text_plan(config, task, positions(config), padding=1, norm="pre", embedding_norm=True, final_norm=True)


MBART = seq2seq_family("mbart", _build, "ForConditionalGeneration")
