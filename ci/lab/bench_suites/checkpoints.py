"""Configurations of the measured checkpoints; `ci.lab.rivals.exporters.drawn` draws the same weights for all."""

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
#: 273 M weights, 33 M of them embeddings
LLAMA_16 = {
    **LLAMA,
    "hidden_size": 1024,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 3200,
}
#: of Qwen3's kind: heads of 128 channels, queries and keys normalised
QWEN3 = {
    **LLAMA,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "rope_theta": 1000000.0,
}
#: a hybrid of Qwen3.5's kind (12 layers, 228 M weights): three layers of the gated delta rule, then one of attention.
#: As in Qwen3.5-0.8B there are as many key heads as value heads
QWEN35: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 2816,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "layer_types": [*["linear_attention"] * 3, "full_attention"] * 3,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 8,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
    },
    "tie_word_embeddings": False,
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
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
    "llama-16": LLAMA_16,
    "qwen3": QWEN3,
    "qwen3.5": QWEN35,
    "bert-absolute": {**BERT, "position_embedding_type": "absolute"},
    "bert-relative-key": {**BERT, "position_embedding_type": "relative_key"},
    "bert-relative-key-query": {**BERT, "position_embedding_type": "relative_key_query"},
    "t5": T5,
    "t5-with-decoder": T5_WITH_DECODER,
}
