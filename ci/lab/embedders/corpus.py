"""Texts drawn with a seed, small tokenizers trained on them, and weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SYLLABLES = ["ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "qui", "ro", "su", "ta", "ve"]
SYLLABLES += ["wi", "xo", "yu", "za", "é", "ß", "漢"]


def texts(count: int = 200, most: int = 2000, seed: int = 28) -> list[str]:
    """Of 1 to ``most`` words, some capitalised, some with punctuation."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(SYLLABLES, size=rng.integers(1, 4))) for _ in range(400)]
    lengths = np.unique(np.geomspace(1, most, 3 * count).astype(int))
    lengths = np.resize(rng.permutation(np.concatenate([lengths, [1, 2, most]])), count)
    lengths[:2] = 1, most
    made = []
    for length in lengths:
        chosen = rng.choice(words, size=length)
        capital, mark = rng.random(length) < 0.2, rng.choice(["", "", "", ",", ".", "?"], size=length)
        made.append(" ".join(w.capitalize() + m if c else w + m for w, c, m in zip(chosen, capital, mark, strict=True)))
    return made


def wordpiece(corpus: Sequence[str], *, types: bool = False) -> PreTrainedTokenizerFast:
    """As BERT's, cased: [CLS] text [SEP] text [SEP]; ``types``: the second text's tokens have another type."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names: dict[str, Any] = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    if types:
        names["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]", **names)


def byte_level(
    corpus: Sequence[str], *, side: str = "right", begin: bool = False, end: bool = True, words: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """As GPT-2's and Qwen's, with a token before and behind the text where asked; ``words`` are special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "<s>", "</s>", *words],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus, trainer)
    first, last = ["<s>"] * begin, ["</s>"] * end
    single = " ".join([*first, "$A", *last])
    pair = " ".join([*first, "$A", *last, *last, "$B", *last])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, padding_side=side, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def randomise(model: torch.nn.Module, seed: int, scale: float) -> None:
    """Weights at which positions, biases and normalisations all matter."""
    rng = np.random.default_rng(seed)
    for name, parameter in model.named_parameters():
        noise = torch.from_numpy(rng.standard_normal(tuple(parameter.shape), dtype=np.float32))
        norm = name.endswith("weight") and parameter.dim() == 1
        parameter.data.copy_(
            0.3 * noise + (0 if "gemma" in type(model).__name__.lower() else 1) if norm else scale * noise
        )
