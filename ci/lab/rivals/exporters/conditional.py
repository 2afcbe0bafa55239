"""A text model of Qwen3.5's kind below a small model of images: ``CHECKPOINT DIRECTORY``, for onnxruntime-genai.

Its builder reads the architecture of images and text alone, and leaves the images out. Imports nothing of posexport.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

#: sizes that nobody runs
_IMAGES = {"depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2, "num_position_embeddings": 16}


def main(checkpoint: str, directory: str) -> None:
    config = json.loads(Path(checkpoint, "config.json").read_text())
    images = {**_IMAGES, "out_hidden_size": config["hidden_size"], "deepstack_visual_indexes": []}
    del config["architectures"]
    whole = transformers.Qwen3_5Config(text_config=config, vision_config=images, tie_word_embeddings=False)
    model = transformers.Qwen3_5ForConditionalGeneration(whole)
    weights = load_file(Path(checkpoint, "model.safetensors"))
    text = {key.replace("model.", "model.language_model.", 1): value for key, value in weights.items()}
    missing, unexpected = model.load_state_dict(text, strict=False)
    unread = [*unexpected, *(key for key in missing if "visual" not in key)]
    if unread:
        raise SystemExit(f"tensors without a place: {', '.join(unread[:3])}")
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(checkpoint, name), directory)


if __name__ == "__main__":
    with torch.no_grad():
        main(*sys.argv[1:])
