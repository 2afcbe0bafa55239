"""DistilBERT: BERT without token types and pooler, with different names of config keys and modules.

Sanh et al., "DistilBERT" (arXiv:1910.01108), and the code released with it. ``sinusoidal_pos_embds`` only says how the
table of positions began: the file holds the table either way (often trained since), and transformers reads it.
"""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import encoder
from posexport.checkpoints.mapping import Plan

_LAYER = "transformer.layer.{i}"
_NAMES = encoder.Names(
    prefix="distilbert",
    once={
        "embeddings.token": "embeddings.word_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "embeddings.encoding": "embeddings.position_embeddings",
    },
    layer={
        "attention.query": f"{_LAYER}.attention.q_lin",
        "attention.key": f"{_LAYER}.attention.k_lin",
        "attention.value": f"{_LAYER}.attention.v_lin",
        "attention.output": f"{_LAYER}.attention.out_lin",
        "attention_residual.norm": f"{_LAYER}.sa_layer_norm",
        "feedforward.inner": f"{_LAYER}.ffn.lin1",
        "feedforward.outer": f"{_LAYER}.ffn.lin2",
        "feedforward_residual.norm": f"{_LAYER}.output_layer_norm",
    },
    fill_mask=encoder.FillMaskNames(
        dense="vocab_transform",
        norm="vocab_layer_norm",
        decoder="vocab_projector",
        bias=("vocab_projector.bias",),
    ),
    classifier=encoder.ClassifierNames(dense="pre_classifier", out="classifier", activation="relu"),
)


def _build(config: Config, task: str) -> Plan:
    config.flag("sinusoidal_pos_embds", False)
    settings = encoder.settings(config, types=0, eps=1e-12)  # whatever layer_norm_eps says
    return encoder.plan(config, task, _NAMES, settings, encoder.absolute(config, settings))


DISTILBERT = encoder.family(
    "distilbert",
    _build,
    "distilbert",
    roots=("embeddings.", "transformer."),
    spellings={
        "hidden_size": ("dim", "hidden_size"),
        "num_attention_heads": ("n_heads", "num_attention_heads"),
        "num_hidden_layers": ("n_layers", "num_hidden_layers"),
        "intermediate_size": ("hidden_dim",),
        "hidden_act": ("activation",),
    },
    other_heads={
        "vocab_transform.": "the fill-mask head",
        "vocab_layer_norm.": "the fill-mask head",
        "vocab_projector.": "the fill-mask head",
        "pre_classifier.": "a classification head",
        "classifier.": "a classification head",
        "qa_outputs.": "the question-answering head",
    },
)
