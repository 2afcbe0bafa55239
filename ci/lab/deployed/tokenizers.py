"""Tokenizers with as many made-up pieces as the vocabulary of a deployed model has, in the files of its folder."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


def words() -> Iterator[str]:
    """All words of letters, the short ones first."""
    for length in itertools.count(1):
        yield from map("".join, itertools.product(_LETTERS, repeat=length))


def wordpiece(config: dict[str, Any], folder: Path) -> None:
    """BERT's: special tokens where bert-base-uncased has them, in tokenizer.json and vocab.txt."""
    special = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    vocab = {**special}
    taken = set(special.values())
    vocab |= {f"[unused{number}]": number for number in range(104) if number not in taken}
    both = (piece for word in words() for piece in (word, f"##{word}"))
    vocab |= dict(zip(both, range(104, config["vocab_size"]), strict=False))
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 102), ("[CLS]", 101))
    tokenizer.add_special_tokens(list(special))
    (folder / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.__getitem__)) + "\n")
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    save(tokenizer, {"tokenizer_class": "BertTokenizer", **dict(zip(names, special, strict=True))}, config, folder)


def unigram(config: dict[str, Any], folder: Path) -> None:
    """XLM-RoBERTa's."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = itertools.islice(("▁" * start + word for word in words() for start in (1, 0)), config["vocab_size"] - 5)
    scored = [(piece, -8.0 - index / config["vocab_size"]) for index, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram([*((each, 0.0) for each in special), *scored, ("<mask>", 0.0)], 3, False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens([*special, "<mask>"])
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>"}
    names |= {"unk_token": "<unk>", "mask_token": "<mask>", "tokenizer_class": "XLMRobertaTokenizer"}
    save(tokenizer, names, config, folder)


def byte_level(config: dict[str, Any], folder: Path) -> None:
    """BPE over bytes, as of GPT-2, Llama 3 and Qwen2: every pair of pieces is merged until the vocabulary is full."""
    # special tokens are the configuration's; the pieces end before the first of them that is not at the start
    ids = sorted({token for key, token in config.items() if key.endswith("token_id") and isinstance(token, int)})
    first = next((token for token in ids if token > 1000), config["vocab_size"])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    low = [token for token in ids if token < first]
    offset = max(low, default=-1) + 1
    pieces = list(alphabet)
    merges: list[tuple[str, str]] = []
    for left, right in itertools.product([*alphabet, *_doubles()], alphabet):
        if len(pieces) >= first - offset:
            break
        merges.append((left, right))
        pieces.append(left + right)
    named = {f"<|special_{token}|>": token for token in range(offset)}
    vocab = named | {piece: offset + number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # special tokens of a high number stand directly behind the pieces
    tokenizer.add_special_tokens([*named, *(f"<|special_{token}|>" for token in range(first, max(ids) + 1))])
    settings = {
        key.removesuffix("_id"): f"<|special_{config[key]}|>"
        for key in ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id")
        if config.get(key) is not None
    }
    save(tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", **settings}, config, folder)


def _doubles() -> Iterator[str]:
    """Pieces of two letters, the left parts of pieces of three."""
    return map("".join, itertools.product(_LETTERS + _LETTERS.upper(), repeat=2))


def save(tokenizer: Tokenizer, settings: dict[str, Any], config: dict[str, Any], folder: Path) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    limit = config.get("max_position_embeddings", config.get("max_target_positions"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": limit}, indent=2))


TOKENIZERS: dict[str, Callable[[dict[str, Any], Path], None]] = {
    "wordpiece": wordpiece,
    "unigram": unigram,
    "byte-level": byte_level,
}
