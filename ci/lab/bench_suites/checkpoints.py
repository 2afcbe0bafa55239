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
