"""Hugging Face checkpoints with random weights, of the shapes that are measured: the same weights for every exporter.

Run as a module it writes one: ``python -m posexport.bench.checkpoints NAME DIRECTORY``.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: the last map of Llama's logits is its own here (12 layers, 125 M weights), not the embeddings
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 2048,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}
T5: dict[str, Any] = {
    "architectures": ["T5EncoderModel"],
    "model_type": "t5",
    "vocab_size": 32128,
    "d_model": 768,
    "d_kv": 64,
    "d_ff": 3072,
    "num_layers": 12,
    "num_heads": 12,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "feed_forward_proj": "relu",
    "layer_norm_epsilon": 1e-6,
    "is_encoder_decoder": False,
    "use_cache": False,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}
#: the same encoder below a decoder of one layer, for exporters that take no encoder alone
T5_WITH_DECODER = {
    **T5,
    "architectures": ["T5ForConditionalGeneration"],
    "is_encoder_decoder": True,
    "use_cache": True,
    "num_decoder_layers": 1,
    "decoder_start_token_id": 0,
    "tie_word_embeddings": True,
}
CONFIGS = {
    "llama": LLAMA,
    "bert-absolute": {**BERT, "position_embedding_type": "absolute"},
    "bert-relative-key": {**BERT, "position_embedding_type": "relative_key"},
    "bert-relative-key-query": {**BERT, "position_embedding_type": "relative_key_query"},
    "t5": T5,
    "t5-with-decoder": T5_WITH_DECODER,
}
Shapes = Iterator[tuple[str, tuple[int, ...]]]


def tensors(config: dict[str, Any]) -> Shapes:
    """Names and shapes of the weights, as transformers stores them."""
    return {"llama": _llama, "bert": _bert, "t5": _t5}[config["model_type"]](config)


def vocab(name: str) -> int:
    return int(CONFIGS[name]["vocab_size"])


def write(name: str, directory: Path) -> None:
    """The checkpoint called ``name``; its tokenizer, which some exporters want, knows two words."""
    import numpy as np
    from safetensors.numpy import save_file

    config, rng = CONFIGS[name], np.random.default_rng(0)
    weights = {}
    for key, shape in tensors(config):
        noise = rng.standard_normal(shape, dtype=np.float32)
        if key.endswith(("norm.weight", "layernorm.weight", "LayerNorm.weight")):
            weights[key] = 1 + np.float32(0.1) * noise
        else:
            weights[key] = noise * np.float32(0.1 if len(shape) == 1 else shape[-1] ** -0.5)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "b": 2}, "unk_token": "[UNK]"}
    files = {
        "config.json": config,
        "tokenizer.json": {"version": "1.0", "added_tokens": [], "model": model},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"},
    }
    for file, content in files.items():
        (directory / file).write_text(json.dumps(content))


def _llama(config: dict[str, Any]) -> Shapes:
    hidden, inner, vocab_size = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kept = config["num_key_value_heads"] * config["head_dim"]
    yield "model.embed_tokens.weight", (vocab_size, hidden)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        for which, out in (("q", hidden), ("k", kept), ("v", kept), ("o", hidden)):
            yield f"{at}.self_attn.{which}_proj.weight", (out, hidden)
        yield f"{at}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{at}.mlp.up_proj.weight", (inner, hidden)
        yield f"{at}.mlp.down_proj.weight", (hidden, inner)
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab_size, hidden)


def _bert(config: dict[str, Any]) -> Shapes:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    longest, size = config["max_position_embeddings"], hidden // config["num_attention_heads"]

    def linear(at: str, out: int, into: int) -> Shapes:
        yield f"{at}.weight", (out, into)
        yield f"{at}.bias", (out,)

    def norm(at: str) -> Shapes:
        yield f"{at}.LayerNorm.weight", (hidden,)
        yield f"{at}.LayerNorm.bias", (hidden,)

    yield "embeddings.word_embeddings.weight", (config["vocab_size"], hidden)
    yield "embeddings.position_embeddings.weight", (longest, hidden)  # transformers 4 writes it for all, read or not
    yield "embeddings.token_type_embeddings.weight", (config["type_vocab_size"], hidden)
    yield from norm("embeddings")
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        for which in ("query", "key", "value"):
            yield from linear(f"{at}.attention.self.{which}", hidden, hidden)
        if config["position_embedding_type"] != "absolute":
            yield f"{at}.attention.self.distance_embedding.weight", (2 * longest - 1, size)
        yield from linear(f"{at}.attention.output.dense", hidden, hidden)
        yield from norm(f"{at}.attention.output")
        yield from linear(f"{at}.intermediate.dense", inner, hidden)
        yield from linear(f"{at}.output.dense", hidden, inner)
        yield from norm(f"{at}.output")
    yield from linear("pooler.dense", hidden, hidden)


def _t5(config: dict[str, Any]) -> Shapes:
    yield "shared.weight", (config["vocab_size"], config["d_model"])
    yield from _t5_stack(config, "encoder", config["num_layers"], ("SelfAttention",))
    if config["is_encoder_decoder"]:  # after the encoder, which then has the weights it has alone
        yield from _t5_stack(config, "decoder", config["num_decoder_layers"], ("SelfAttention", "EncDecAttention"))


def _t5_stack(config: dict[str, Any], stack: str, layers: int, attentions: tuple[str, ...]) -> Shapes:
    hidden, inner, width = config["d_model"], config["d_ff"], config["num_heads"] * config["d_kv"]
    for i in range(layers):
        for sublayer, attention in enumerate(attentions):
            at = f"{stack}.block.{i}.layer.{sublayer}"
            for which in "qkv":
                yield f"{at}.{attention}.{which}.weight", (width, hidden)
            yield f"{at}.{attention}.o.weight", (hidden, width)
            if i == sublayer == 0:
                buckets = config["relative_attention_num_buckets"]
                yield f"{at}.{attention}.relative_attention_bias.weight", (buckets, config["num_heads"])
            yield f"{at}.layer_norm.weight", (hidden,)
        at = f"{stack}.block.{i}.layer.{len(attentions)}"
        yield f"{at}.DenseReluDense.wi.weight", (inner, hidden)
        yield f"{at}.DenseReluDense.wo.weight", (hidden, inner)
        yield f"{at}.layer_norm.weight", (hidden,)
    yield f"{stack}.final_layer_norm.weight", (hidden,)


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
