"""A folder as BGE-M3 has it, seeded: XLM-RoBERTa of two layers, its tokenizer, and FlagEmbedding's two projections."""

import json
import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

GOLDEN = Path(__file__).parent / "golden" / "xlm-roberta-absolute"
#: of the golden checkpoint, and an odd size for the vectors of tokens
HIDDEN, WIDTH, VOCABULARY = 20, 7, 43
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
WORDS = [f"w{number}" for number in range(len(SPECIAL), VOCABULARY)]
#: repeated words, an unknown one, special tokens in a text, no words
TEXTS = [
    "w7 w8 w7 w9 w10 w7",
    "w11",
    "w9 nobody w12 w8",
    "w20 w21 w22 w23 w24 w25 w26 w27 w28 w29 w30 w7",
    "w13 </s> w14 <unk> w13 <s>",
    "",
]


def write(folder: Path, *, modules: bool = True) -> Path:
    """``modules``: with the modules.json of sentence-transformers (first token, normalised), as the published one."""
    shutil.copytree(GOLDEN, folder, ignore=shutil.ignore_patterns("expected.safetensors"))
    generator = torch.Generator().manual_seed(5)
    for name, rows in (("sparse_linear.pt", 1), ("colbert_linear.pt", WIDTH)):
        shapes = {"weight": (rows, HIDDEN), "bias": (rows,)}
        torch.save({key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}, folder / name)
    tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "XLMRobertaTokenizer", "pad_token": "<pad>", "model_max_length": 31}
    _write(folder / "tokenizer_config.json", settings)
    if modules:
        kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
        listed = enumerate(kinds.items())
        places = [
            {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for idx, (kind, path) in listed
        ]
        _write(folder / "modules.json", places)
        (folder / "1_Pooling").mkdir()
        pooling = {"word_embedding_dimension": HIDDEN, "pooling_mode_cls_token": True}
        _write(folder / "1_Pooling" / "config.json", pooling)
    return folder


def tokenizer() -> Tokenizer:
    made = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate([*SPECIAL, *WORDS])}, unk_token="<unk>")
    )
    made.add_special_tokens(list(SPECIAL))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return made


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))
