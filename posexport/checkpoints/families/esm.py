"""ESM: rotations in halves (ESM-2) or a table of absolute positions (ESM-1b), normalisation before each sublayer.

The share of mask tokens is that among the real tokens, as in the released code of ESM and in transformers 5; 4.57.6
takes it among all, so that there padding changes a row that has mask tokens. Positions of the table begin after the
padding's id and count tokens other than padding. Not read: folding models, contact predictions.
"""

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import encoder
from posexport.checkpoints.families.bert import SUBLAYERS
from posexport.checkpoints.mapping import Constant, Plan
from posexport.encodings.rope.rope import Rope
from posexport.encodings.waves import frequencies
from posexport.errors import PosexportError

_NAMES = encoder.Names(
    prefix="esm",
    once={
        "embeddings.token": "embeddings.word_embeddings",
        "embeddings.norm": "embeddings.layer_norm",
        "embeddings.encoding": "embeddings.position_embeddings",
        "final_norm": "encoder.emb_layer_norm_after",
    },
    layer=SUBLAYERS
    | {
        "attention_residual.norm": "encoder.layer.{i}.attention.LayerNorm",
        "feedforward_residual.norm": "encoder.layer.{i}.LayerNorm",
    },
    fill_mask=encoder.FillMaskNames(
        dense="lm_head.dense",
        norm="lm_head.layer_norm",
        decoder="lm_head.decoder",
        bias=("lm_head.bias",),  # its decoder has none
        activation="gelu",
    ),
    classifier=encoder.ClassifierNames(dense="classifier.dense", out="classifier.out_proj"),
)


def _build(config: Config, task: str) -> Plan:
    kind = config.text("position_embedding_type", "absolute")
    if kind not in ("rotary", "absolute"):
        raise PosexportError(
            f"{config.label} says position_embedding_type = {kind!r:.60}; of ESM rotary and absolute are read"
        )
    if config.flag("is_folding_model", False):
        raise PosexportError(f"{config.label} sets is_folding_model: only the language model is read, not the folding")
    before = config.values.get("emb_layer_norm_before") is not None and config.flag("emb_layer_norm_before", False)
    dropped = None
    if config.flag("token_dropout", False):
        dropped = config.size("mask_token_id", least=0, most=config.size("vocab_size") - 1)
        config.remark(
            "sets token_dropout: the share of mask tokens is that among a row's real tokens; transformers 4.57 counts "
            "padding too, so that there padding changes rows with mask tokens"
        )
    settings = encoder.settings(
        config,
        padding_id=1,
        after_padding=kind == "absolute",
        fixed_activation="gelu",
        types=0,
        norm="pre",
        embedding_norm=before,
        final_norm=True,
        dropped_id=dropped,
    )
    if kind == "absolute":
        encoding = encoder.absolute(config, settings, after_padding=True)
        return encoder.plan(config, task, _NAMES, settings, encoding, after_padding=True)
    # ``rope_theta`` is transformers 5's; before, it was 10000 always
    head_size, base = encoder.even_heads(config, settings), config.positive("rope_theta", 10000.0) or 10000.0
    # once a layer, or once for all, which transformers 5 writes with the layers' number left open (5.23.0 does)
    formula = Constant(torch.tensor(frequencies(head_size, base=base), dtype=torch.float64), rtol=0.01)
    stem = "esm.encoder.layer.{i}.attention.self.rotary_embeddings.inv_freq"
    constants = {stem.format(i=i): formula for i in [*range(settings.layers), "*"]}
    return encoder.plan(config, task, _NAMES, settings, Rope(head_size=head_size, base=base), constants=constants)


ESM = encoder.family(
    "esm",
    _build,
    "esm",
    pooler="pooler.dense",
    other_heads={
        "lm_head.": "the fill-mask head",
        "classifier.": "a classification head",
    },
    beside={"contact_head.": "the head for contacts"},
)
