"""Tiny random checkpoints, and what optimum-onnx and torch.onnx.export make of them.

posexport is not imported. One directory a model: config.json and model.safetensors as transformers writes them, and
beside them the files of the exporter, without its copies of the checkpoint's configuration. `COMMITTED` are in the
repository, for the short run of the tests; the others are made by the tests that `--all` adds.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
import transformers
from optimum.exporters.onnx import main_export

BERT = {
    "vocab_size": 29,
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 17,
    "max_position_embeddings": 33,
}
LLAMA = {
    "vocab_size": 23,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 13,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_theta": 60.0,
}
GPT2 = {
    "vocab_size": 23,
    "n_embd": 20,
    "n_layer": 2,
    "n_head": 5,
    "n_positions": 34,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
T5 = {
    "vocab_size": 29,
    "d_model": 20,
    "d_kv": 4,
    "d_ff": 17,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 5,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
}
WHISPER = {
    "vocab_size": 29,
    "num_mel_bins": 7,
    "d_model": 20,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 17,
    "decoder_ffn_dim": 13,
    "max_source_positions": 1500,
    "max_target_positions": 34,
    "pad_token_id": 2,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
    "suppress_tokens": [4],
    "begin_suppress_tokens": [2, 5],
}


def randomised(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Weights at which positions, biases and normalisations all matter."""
    rng = np.random.default_rng(seed)
    for name, parameter in model.named_parameters():
        noise = torch.from_numpy(rng.standard_normal(tuple(parameter.shape), dtype=np.float32))
        scale = name.endswith("weight") and parameter.dim() == 1
        parameter.data.copy_(1 + 0.3 * noise if scale else 0.4 * noise)
    return model.eval()


def unname(file: Path) -> None:
    """Take the names of nodes out, which are long paths of modules: the file is to stay below 100 kB."""
    model = onnx.load(file)
    for node in model.graph.node:
        node.name = ""
    onnx.save(model, file)


def by_optimum(class_name: str, config_name: str, sizes: dict, tasks: Sequence[str]) -> Callable[[Path], None]:
    """Several tasks are exported into directories of their names."""

    def make(path: Path) -> None:
        config = getattr(transformers, config_name)(**sizes)
        model = randomised(getattr(transformers, class_name)(config), len(class_name))
        model.save_pretrained(path)
        for task in tasks:
            with tempfile.TemporaryDirectory() as made:
                main_export(str(path), made, task=task, do_validation=False, framework="pt", no_post_process=False)
                into = path if len(tasks) == 1 else path / task
                into.mkdir(exist_ok=True)
                for file in sorted(Path(made).glob("*.onnx*")):
                    shutil.copy(file, into / file.name)
                    if class_name == "LlamaForCausalLM":
                        unname(into / file.name)

    return make


def by_torch(
    class_name: str, config_name: str, sizes: dict, inputs: Sequence[str], outputs: Sequence[str], *, dynamo: bool
) -> Callable[[Path], None]:
    """torch.onnx.export as its users call it: example inputs of 2 rows, both axes of each free."""

    def make(path: Path) -> None:
        config = getattr(transformers, config_name)(**sizes)
        model = randomised(getattr(transformers, class_name)(config), len(class_name))
        model.save_pretrained(path)
        model.config.return_dict = model.config.use_cache = False
        far = "decoder_input_ids" in inputs
        lengths = {name: 5 if name.startswith("decoder") else 7 for name in inputs}
        axes = {
            name: {0: "batch_size", 1: "encoder_sequence_length" if far and length == 7 else "sequence_length"}
            for name, length in lengths.items()
        }
        torch.onnx.export(
            model,
            (),
            str(path / "model.onnx"),
            kwargs={name: torch.ones((2, length), dtype=torch.int64) for name, length in lengths.items()},
            input_names=list(inputs),
            output_names=list(outputs),
            dynamo=dynamo,
            external_data=False,
            **({"dynamic_shapes": axes} if dynamo else {"dynamic_axes": axes}),
        )

    return make


TEXT, STATES = ["input_ids", "attention_mask"], ["last_hidden_state", "pooler_output"]
MODELS: dict[str, Callable[[Path], None]] = {
    "bert": by_optimum("BertModel", "BertConfig", BERT, ["feature-extraction"]),
    "llama": by_optimum("LlamaForCausalLM", "LlamaConfig", LLAMA, ["text-generation-with-past"]),
    "llama-no-past": by_optimum("LlamaForCausalLM", "LlamaConfig", LLAMA, ["text-generation"]),
    "gpt2": by_optimum("GPT2LMHeadModel", "GPT2Config", GPT2, ["text-generation-with-past"]),
    "t5": by_optimum(
        "T5ForConditionalGeneration", "T5Config", T5, ["text2text-generation", "text2text-generation-with-past"]
    ),
    "whisper": by_optimum(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        WHISPER,
        ["automatic-speech-recognition", "automatic-speech-recognition-with-past"],
    ),
    "bert-dynamo": by_torch("BertModel", "BertConfig", BERT, TEXT, STATES, dynamo=True),
    "bert-torchscript": by_torch("BertModel", "BertConfig", BERT, TEXT, STATES, dynamo=False),
    "gpt2-dynamo": by_torch("GPT2LMHeadModel", "GPT2Config", GPT2, TEXT, ["logits"], dynamo=True),
    "t5-dynamo": by_torch(
        "T5ForConditionalGeneration", "T5Config", T5, [*TEXT, "decoder_input_ids"], ["logits"], dynamo=True
    ),
}
COMMITTED = ("bert", "llama")


def main(arguments: Sequence[str]) -> None:
    out = Path(arguments[0] if arguments else "tests/foreign")
    for name in arguments[1:] or COMMITTED:
        if name not in MODELS:
            raise SystemExit(f"unknown model {name}; known: {', '.join(MODELS)}")
        shutil.rmtree(out / name, ignore_errors=True)
        (out / name).mkdir(parents=True)
        MODELS[name](out / name)
        print(f"{out / name}: {', '.join(sorted(f.name for f in (out / name).iterdir()))}")


if __name__ == "__main__":
    main(sys.argv[1:])
