"""Writes posexport/testing/smoke/embedder: a bundle of a few kilobytes, with which an installation is tried.

Usage: python ci/artefacts/embedder.py

A BERT with random weights, and the tokenizer and pooling of tests/embedders/bert-mean.
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch
from transformers import BertConfig, BertModel

import posexport

ROOT = Path(__file__).parents[2]
LIKE = ROOT / "tests" / "embedders" / "bert-mean" / "model"
BUNDLE = ROOT / "posexport" / "testing" / "smoke" / "embedder"
SIZES = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 32,
}


def main() -> None:
    torch.manual_seed(60)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "embedder"
        shutil.copytree(LIKE, checkpoint)
        config = BertConfig(**{**json.loads((LIKE / "config.json").read_text(encoding="utf-8")), **SIZES})
        BertModel(config).save_pretrained(checkpoint)
        settings = checkpoint / "sentence_bert_config.json"
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "max_seq_length": 32}), encoding="utf-8")
        pooling = checkpoint / "1_Pooling" / "config.json"
        wide = {"word_embedding_dimension": SIZES["hidden_size"]}
        pooling.write_text(json.dumps({**json.loads(pooling.read_text()), **wide}), encoding="utf-8")
        posexport.convert(checkpoint, BUNDLE, lengths=[1, 2, 17, 32], force=True)


if __name__ == "__main__":
    main()
