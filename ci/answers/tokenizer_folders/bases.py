"""Tiny tokenizers, trained once: ``python -m ci.answers.tokenizer_folders.bases`` writes tests/answers/tokenizers/.

Ties are broken at random in training, so the files are kept, not made anew.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

KEPT = Path(__file__).parents[3] / "tests" / "answers" / "tokenizers"

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It wasn't there, was it? We're sure: they've seen 1,234 of them!",
    "Was ist das? Ein Café am Ende der Straße; naïve Fragen, déjà vu, São Paulo, Ærø, Łódź.",
    "def main(argv):\n    return [x ** 2 for x in range(10)]  # a comment",
    "東京は日本の首都です。 北京是中国的首都。 서울은 한국의 수도입니다.",
    "Привет, мир! Как дела? Καλημέρα κόσμε. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया",
    "HELLO World, Hello WORLD, hello world. Machine learning models tokenize text into tokens.",
    "Emoji: 😀 👍🏽 👩‍👩‍👧 🇩🇪 — dashes, “quotes”, ellipsis… and 3.14159 or 2026-11-26.",
]


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=420, special_tokens=special, show_progress=False)
    lowered = [normalizers.BertNormalizer(lowercase=True).normalize_str(line) for line in CORPUS]
    tokenizer.train_from_iterator(CORPUS + lowered, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=ends
    )
    return tokenizer


def byte_bpe() -> Tokenizer:
    """GPT-2's kind, with RoBERTa's special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def split_bpe() -> Tokenizer:
    """Qwen2's and Llama 3's kind: byte-level, with words split by a pattern."""
    tokenizer = Tokenizer.from_str(byte_bpe().to_str())
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    pattern += r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def unigram() -> Tokenizer:
    """XLM-RoBERTa's and T5's kind."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=420, special_tokens=special, unk_token="<unk>", show_progress=False, shrinking_factor=0.8
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def mark_bpe() -> Tokenizer:
    """Llama 2's kind: byte-pair encoding with ``▁`` for blanks and bytes for what is unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_next")  # for training alone
    special = ["<unk>", "<s>", "</s>", *(f"<0x{number:02X}>" for number in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=640, special_tokens=special, show_progress=False, limit_alphabet=120)
    tokenizer.train_from_iterator(CORPUS, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]
    content["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return tokenizer


BASES = {"wordpiece": wordpiece, "byte-bpe": byte_bpe, "split-bpe": split_bpe, "unigram": unigram, "mark-bpe": mark_bpe}


def kept(name: str) -> dict[str, Any]:
    """The content of a kept tokenizer.json."""
    content: dict[str, Any] = json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8"))
    return content


if __name__ == "__main__":
    KEPT.mkdir(parents=True, exist_ok=True)
    for name, train in BASES.items():
        (KEPT / f"{name}.json").write_text(train().to_str(), encoding="utf-8")
