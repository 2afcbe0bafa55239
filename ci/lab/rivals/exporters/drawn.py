"""A checkpoint of a configuration with random weights: ``NAME DIRECTORY``. Imports no module of posexport.

Of each tensor the numbers are drawn by its name: an encoder has the same weights alone and below a decoder.
"""

import json
import sys
import zlib
from pathlib import Path

import torch
import transformers

from ci.lab.bench_suites.checkpoints import CONFIGS


def main(name: str, directory: str) -> None:
    config = dict(CONFIGS[name])
    (architecture,) = config["architectures"]
    cls = getattr(transformers, architecture)
    model = cls(cls.config_class(**config)).eval()
    for key, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(zlib.crc32(key.encode())))
        norm = key.endswith(("norm.weight", "LayerNorm.weight"))
        weight.copy_(1 + 0.1 * noise if norm else noise * (0.1 if weight.ndim == 1 else weight.shape[-1] ** -0.5))
    model.save_pretrained(directory)
    # a tokenizer, which some exporters want, of two words
    words = {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "b": 2}, "unk_token": "[UNK]"}
    files = {
        "config.json": config,
        "tokenizer.json": {"version": "1.0", "added_tokens": [], "model": words},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"},
    }
    for file, content in files.items():
        Path(directory, file).write_text(json.dumps(content))


if __name__ == "__main__":
    with torch.no_grad():
        main(*sys.argv[1:])
