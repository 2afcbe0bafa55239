"""Models with a vector for each token (ColBERT) in the three forms in which they are stored.

Each is opened by sentence-transformers' `MultiVectorEncoder` and asked for queries, documents and scores.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from corpus import wordpiece
from safetensors.torch import load_file, save_file
from sentence_embedders import BERT
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

WIDTH = 12
CALLS: list[dict[str, Any]] = [{}, {"prompt_name": "query"}, {"rank": True}]
Randomise = Callable[..., None]


def answers(folder: Path, asked: Sequence[str]) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """Vectors of documents and of queries, text by text in one array, and scores of all texts with the first."""
    opened = MultiVectorEncoder(str(folder), device="cpu")
    documents, queries = (
        encode(list(asked), convert_to_numpy=True, show_progress_bar=False)
        for encode in (opened.encode_document, opened.encode_query)
    )
    scores = opened.similarity(queries[:1], documents)[0].numpy()
    return CALLS, [np.concatenate(documents), np.concatenate(queries), scores]


def transformer(
    folder: Path, corpus: Sequence[str], randomise: Randomise, seed: int, words: Sequence[str], length: int
) -> None:
    """A BERT and its tokenizer, with ``words`` among the tokens."""
    tokenizer = wordpiece(corpus)
    tokenizer.add_tokens(list(words))
    model = transformers.BertModel(transformers.BertConfig(**{**BERT, "vocab_size": len(tokenizer)}))
    randomise(model, seed, 0.4)
    model.save_pretrained(folder)
    tokenizer.model_max_length = length
    tokenizer.save_pretrained(folder)


def projection(seed: int) -> torch.Tensor:
    noise = np.random.default_rng(seed).standard_normal((WIDTH, BERT["hidden_size"]), dtype=np.float32)
    return torch.from_numpy(noise)


def stanford(
    target: Path, corpus: Sequence[str], asked: Sequence[str], randomise: Randomise, *, seed: int, attend: bool
) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """As colbert-ai saves: class ``HF_ColBERT``, the projection beside the transformer, ``artifact.metadata``."""
    transformer(target, corpus, randomise, seed, ["[unused0]", "[unused1]"], 100)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"architectures": ["HF_ColBERT"]}))
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(target / "model.safetensors").items()}
    save_file(tensors | {"linear.weight": projection(seed)}, target / "model.safetensors", metadata={"format": "pt"})
    metadata = {
        "query_token_id": "[unused0]",
        "doc_token_id": "[unused1]",
        "query_token": "[Q]",
        "doc_token": "[D]",
        "dim": WIDTH,
        "similarity": "cosine",
        "attend_to_mask_tokens": attend,
        "query_maxlen": 32,
        "doc_maxlen": 90,
        "mask_punctuation": True,
    }
    (target / "artifact.metadata").write_text(json.dumps(metadata))
    return answers(target, asked)


def pylate(
    target: Path, corpus: Sequence[str], asked: Sequence[str], randomise: Randomise, *, seed: int, **rules: Any
) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """As PyLate 1.6 saves: Transformer and its own Dense, and the rules in config_sentence_transformers.json."""
    transformer(target, corpus, randomise, seed, ["[Q] ", "[D] "], 31)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
    ]
    (target / "modules.json").write_text(json.dumps(modules))
    (target / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 31, "do_lower_case": False}))
    dense = {
        "in_features": BERT["hidden_size"],
        "out_features": WIDTH,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
        "use_residual": False,
    }
    (target / "1_Dense").mkdir()
    (target / "1_Dense" / "config.json").write_text(json.dumps(dense))
    save_file({"linear.weight": projection(seed)}, target / "1_Dense" / "model.safetensors")
    settings = {
        "model_type": "ColBERT",
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 24,
        "document_length": 80,
        "attend_to_expansion_tokens": False,
        "skiplist_words": ["ba", ",", "."],
        "do_query_expansion": True,
    }
    (target / "config_sentence_transformers.json").write_text(json.dumps(settings | rules))
    return answers(target, asked)


def native(
    target: Path, corpus: Sequence[str], asked: Sequence[str], randomise: Randomise, *, seed: int
) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """As sentence-transformers 6 saves it."""
    with TemporaryDirectory() as plain:
        transformer(Path(plain), corpus, randomise, seed, ["[Q]", "[D]"], 120)
        first = Transformer(
            plain,
            document_length=70,
            query_expansion={"strategy": "min", "attend": True, "length": 20, "token": "[SEP]"},
        )
    name = "token_embeddings"
    dense = Dense(BERT["hidden_size"], WIDTH, bias=True, activation_function=torch.nn.Tanh(), module_input_name=name)
    randomise(dense, seed + 1, 0.5)
    mask = MultiVectorMask(["."], skiplist_tasks=["query", "document"])
    MultiVectorEncoder(
        modules=[first, dense, mask, Normalize(module_input_name=name)],
        prompts={"query": "[Q] ", "document": "[D] text: "},
        similarity_fn_name="meanmaxsim",
        device="cpu",
    ).save_pretrained(str(target))
    return answers(target, asked)


MODELS: dict[str, Callable[..., Any]] = {
    "colbert": partial(stanford, seed=30, attend=False),
    "colbert-attended": partial(stanford, seed=31, attend=True),
    "colbert-pylate": partial(pylate, seed=32),
    "colbert-pylate-short": partial(
        pylate, seed=33, do_query_expansion=False, prompts={"query": "ba ce ", "document": ""}
    ),
    "colbert-native": partial(native, seed=34),
}
