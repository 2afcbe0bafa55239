"""A checkpoint as a file for llama.cpp: ``CHECKPOINT DIRECTORY float32|q4_0``. Writes model.gguf.

In 4 bits the projection to the vocabulary has 8, as in posexport's int4. Tensors have the names and the layouts of
llama.cpp's converter (``conversion/``). Imports nothing of posexport.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen3_5_text": gguf.MODEL_ARCH.QWEN35}
_FILES = {"float32": gguf.LlamaFileType.ALL_F32, "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0}


def main(checkpoint: str, directory: str, weights: str) -> None:
    config = json.loads(Path(checkpoint, "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(Path(directory, "model.gguf"), gguf.MODEL_ARCH_NAMES[architecture])
    _sizes(writer, config)
    writer.add_file_type(_FILES[weights])
    # every tensor under its name in llama.cpp
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for key, value in load_file(Path(checkpoint, "model.safetensors")).items():
        key, tensor = _laid_out(key, value, config)
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise SystemExit(f"{key} has no name in llama.cpp")
        kind = _kind(name, tensor, weights)
        stored = gguf.quants.quantize(tensor, kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """The header: sizes of the model, and a tokenizer without words."""
    rope = config.get("rope_parameters", {})
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta", config.get("rope_theta")))
    writer.add_rope_dimension_count(int(config["head_dim"] * rope.get("partial_rotary_factor", 1)))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    if "linear_num_key_heads" in config:
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
        writer.add_full_attention_interval(config["full_attention_interval"])
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
        writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])


def _laid_out(key: str, value: NDArray[Any], config: dict[str, Any]) -> tuple[str, NDArray[np.float32]]:
    """A tensor and its name as the converter has them before it looks for llama.cpp's name."""
    tensor = value.astype(np.float32)
    if config["model_type"] == "llama":
        # llama.cpp rotates adjacent channels of a Llama, transformers the two halves of a head
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(key.split(".")[-2])
        if heads is not None:
            rows, columns = tensor.shape
            halves = tensor.reshape(config[heads], 2, -1, columns)
            tensor = halves.swapaxes(1, 2).reshape(rows, columns)
        return key, tensor
    if key.endswith(".A_log"):
        return key, -np.exp(tensor)
    if key.endswith(".dt_bias"):
        return key.replace(".dt_bias", ".dt_proj.bias"), tensor
    if key.endswith(".conv1d.weight"):
        return key, tensor[:, 0]
    if key.endswith("norm.weight") and not key.endswith("linear_attn.norm.weight"):
        return key, tensor + 1
    return key, tensor


def _kind(name: str, tensor: NDArray[Any], weights: str) -> gguf.GGMLQuantizationType:
    """How a tensor is stored; vectors and the weights of convolutions stay float32."""
    if weights == "float32" or tensor.ndim == 1 or "conv" in name:
        return gguf.GGMLQuantizationType.F32
    is_vocabulary = name.startswith(("output.", "token_embd."))
    return gguf.GGMLQuantizationType.Q8_0 if is_vocabulary else gguf.GGMLQuantizationType.Q4_0


if __name__ == "__main__":
    main(*sys.argv[1:])
