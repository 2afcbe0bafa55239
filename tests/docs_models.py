"""Tiny checkpoints under the names that README and docs use, so that their commands and snippets run as written.

The weights are those of ``tests/golden``; tables of the vocabulary and of positions are drawn anew (seed 0) at the
sizes that tokenizers and examples need.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ci.answers.seeded import rebuild

GOLDEN = Path(__file__).parent / "golden"
CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
#: name in the docs -> golden checkpoint
CHECKPOINTS = {
    "all-MiniLM-L6-v2": "bert-absolute",
    "sentence-transformers/all-MiniLM-L6-v2": "bert-absolute",
    "path/to/all-MiniLM-L6-v2": "bert-absolute",
    "SmolLM2": "llama-forcausallm",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "llama-forcausallm",
    "t5-small": "t5-forconditionalgeneration",
}
#: name in the docs -> checkpoint of tests/answers/pipelines
ANSWERED = {
    "distilbert-sst2": "bert-classes",
    "bert-ner": "bert-ner",
    "roberta-squad": "roberta-qa",
    "deberta-nli": "deberta-nli",
}
CHECKPOINTS |= ANSWERED
#: name in the docs -> folder of tests/zero_shot
ZERO_SHOT = {"gliner_small-v2.5": "gliner-span", "gliclass-small-v1.0": "gliclass-dot"}
#: tokens of the vocabulary: those of BERT, since a page names ids of it; a decoder has logits of each
VOCABULARIES = {"bert-absolute": 30522, "llama-forcausallm": 300, "t5-forconditionalgeneration": 300}
#: bundle in the docs -> checkpoint that it is made from, where a page does not make it itself
BUNDLES = {"minilm": "all-MiniLM-L6-v2", "smollm": "SmolLM2", "t5": "t5-small"}


def checkpoint(name: str, directory: Path) -> None:
    """Write the checkpoint that the docs call ``name``."""
    if name in ANSWERED:
        rebuild(GOLDEN.parent / "answers" / "pipelines" / f"{ANSWERED[name]}.json", directory)
        return
    if name in ZERO_SHOT:
        shutil.copytree(GOLDEN.parent / "zero_shot" / ZERO_SHOT[name], directory)
        return
    golden = GOLDEN / CHECKPOINTS[name]
    directory.mkdir(parents=True)
    for file in golden.glob("*.json"):
        shutil.copy(file, directory)
    config = json.loads((golden / "config.json").read_text())
    vocabulary = VOCABULARIES[CHECKPOINTS[name]]
    generator = torch.Generator().manual_seed(0)
    tensors = load_file(golden / "model.safetensors")
    sizes = {config["vocab_size"]: vocabulary, config.get("max_position_embeddings", -1): 512}
    for key, tensor in tensors.items():
        if any(part in key for part in ("embed", "shared", "lm_head", "cls.predictions.bias")):
            rows = sizes.get(len(tensor), len(tensor))
            shape = [rows, *tensor.shape[1:]]
            tensors[key] = (
                torch.randn(shape, generator=generator).to(tensor.dtype) * 0.5 if rows != len(tensor) else tensor
            )
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config["vocab_size"] = vocabulary
    if "max_position_embeddings" in config:
        config["max_position_embeddings"] = 512
    (directory / "config.json").write_text(json.dumps(config))
    tokenizer().save(str(directory / "tokenizer.json"))
    if "MiniLM" in name:
        _sentences(directory, config["hidden_size"])
    if "SmolLM" in name:
        (directory / "chat_template.jinja").write_text(CHAT)


def tokenizer() -> Tokenizer:
    """Byte by byte: any text has tokens, none of which is special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: number + 3 for number, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.enable_padding(pad_id=0, pad_token=alphabet[0])
    return made


def _sentences(directory: Path, hidden: int) -> None:
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules: list[dict[str, Any]] = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
