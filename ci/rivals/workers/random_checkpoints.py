"""Checkpoints with random weights and optimum's float32 graphs of them: DIRECTORY [NAME ...]. Imports no posexport.

Weights are drawn so that attention distinguishes tokens and positions: scores spread over several units, as those of
trained models do. `transformers` draws all of them with a deviation of 0.02, with which every token is attended alike.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from optimum.exporters.onnx import main_export

SIZES = {"vocab_size": 1000, "num_hidden_layers": 4}
ENCODER = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
#: class, its configuration, by how much parameters are larger than the inverse root of what they sum, optimum's task
MODELS: dict[str, tuple[Any, Any, dict[str, float], str]] = {
    "t5": (
        transformers.T5ForConditionalGeneration,
        transformers.T5Config(
            vocab_size=1000,
            d_model=320,
            d_kv=64,
            d_ff=1024,
            num_layers=4,
            num_decoder_layers=1,
            num_heads=5,
            decoder_start_token_id=0,
        ),
        {".q.weight": 0.6, ".k.weight": 0.6, "relative_attention_bias": 3},
        "text2text-generation",
    ),
    "mpnet": (
        transformers.MPNetModel,
        transformers.MPNetConfig(**SIZES, **ENCODER, max_position_embeddings=514),
        {"attn.q.weight": 2, "attn.k.weight": 2, "relative_attention_bias": 3},
        "feature-extraction",
    ),
    "deberta-v2": (
        transformers.DebertaV2Model,
        transformers.DebertaV2Config(
            **SIZES,
            **ENCODER,
            max_position_embeddings=512,
            relative_attention=True,
            position_buckets=256,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
            position_biased_input=False,
            type_vocab_size=0,
        ),
        {"query_proj.weight": 2, "key_proj.weight": 2},
        "feature-extraction",
    ),
    "llama": (
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(
            **SIZES,
            hidden_size=320,
            num_attention_heads=5,
            num_key_value_heads=1,
            intermediate_size=864,
            max_position_embeddings=4096,
        ),
        {"q_proj.weight": 2, "k_proj.weight": 2},
        "text-generation",
    ),
}
#: parameters whose rows are looked up, not summed
TABLES = ("shared", "word_embed", "embed_tokens", "relative_attention_bias", "position", "rel_embeddings")


def draw(model: Any, factors: dict[str, float]) -> None:
    """Fill the matrices of ``model``."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.normal_(0, 1 if any(table in name for table in TABLES) else weight.shape[1] ** -0.5)
            for part, factor in factors.items():
                if part in name:
                    weight *= factor


def main(folder: str, *names: str) -> None:
    for name in names or MODELS:
        torch.manual_seed(0)
        kind, config, factors, task = MODELS[name]
        model = kind(config).eval()
        draw(model, factors)
        checkpoint = Path(folder) / name
        model.save_pretrained(checkpoint)
        main_export(
            checkpoint,
            checkpoint / "onnx",
            task=task,
            library_name="transformers",
            no_post_process=True,
            do_validation=False,
            opset=17,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
