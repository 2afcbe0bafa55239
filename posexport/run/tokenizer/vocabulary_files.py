"""A tokenizer.json from older vocabulary files: ``vocab.txt`` (WordPiece), ``vocab.json`` and ``merges.txt`` (GPT-2).

Equal to the tokenizers that transformers builds from these files. A SentencePiece model needs transformers.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posexport.errors import PosexportError
from posexport.run.tokenizer.settings import Settings
from posexport.run.tokenizer.switches.begin_end import template
from posexport.run.tokenizer.switches.switch import Content

#: vocabulary files of other formats than tokenizer.json
FORMS = (
    *("vocab.txt", "vocab.json", "merges.txt", "bpe.codes", "spiece.model", "spm.model", "sentencepiece.bpe.model"),
    *("sentencepiece.model", "tokenizer.model", "source.spm"),
)
#: classes with byte-level tokenizers that are built here
_BYTE_LEVEL = ("GPT2Tokenizer", "CodeGenTokenizer", "RobertaTokenizer", "BartTokenizer", "LongformerTokenizer")
_CLS_SEP = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")


def built(files: Mapping[str, Path], settings: Settings) -> Content | None:
    """The content of a tokenizer.json; None for other files or classes."""
    if "vocab.txt" in files and settings.name in (*_CLS_SEP, "MPNetTokenizer"):
        return _word_piece(files["vocab.txt"], settings)
    if "vocab.json" in files and "merges.txt" in files and settings.name in (*_BYTE_LEVEL, "Qwen2Tokenizer"):
        return _byte_level(files, settings)
    if "vocab.txt" in files and settings.name == "EsmTokenizer":
        return _whole_tokens(files["vocab.txt"], settings)
    return None


def _named(settings: Settings, key: str, vocab: Mapping[str, int]) -> str:
    token = settings.token(key)
    if token is None or token not in vocab:
        raise PosexportError(f"the vocabulary of this folder has no {key} ({token!r}); give a folder with both")
    return token


def _word_piece(path: Path, settings: Settings) -> Content:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    lines = path.read_text(encoding="utf-8").split("\n")
    vocab = {line.rstrip("\r"): number for number, line in enumerate(lines) if line or number < len(lines) - 1}
    unknown = _named(settings, "unk_token", vocab)
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    content: Content = json.loads(tokenizer.to_str())
    first, last = _named(settings, "cls_token", vocab), _named(settings, "sep_token", vocab)
    if settings.name == "MPNetTokenizer":
        content["post_processor"] = _roberta(first, last, vocab)
    else:
        content["post_processor"] = template(first, last, vocab)
        content["post_processor"]["pair"].pop(3)  # one token between two texts
    return content


def _whole_tokens(path: Path, settings: Settings) -> Content:
    """ESM: splits off the tokens of the vocabulary, longest first; text between them is the unknown token."""
    tokens = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    vocab = {token: number for number, token in enumerate(tokens)}
    first, last = _named(settings, "cls_token", vocab), _named(settings, "eos_token", vocab)
    pattern = "|".join(re.escape(token) for token in sorted(filter(None, vocab), key=len, reverse=True))
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    content: Content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, split]}
    content["post_processor"] = template(first, last, vocab)
    content["post_processor"]["pair"].pop(3)  # one token between two texts
    content["decoder"] = None
    content["model"] = {"type": "WordLevel", "vocab": vocab, "unk_token": _named(settings, "unk_token", vocab)}
    return content


def _byte_level(files: Mapping[str, Path], settings: Settings) -> Content:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    vocab = _vocab(files["vocab.json"])
    lines = files["merges.txt"].read_text(encoding="utf-8").split("\n")
    lines = lines[1:] if lines[0].startswith("#version") else lines
    merges = [(first, second) for first, _, second in (line.rstrip("\r").partition(" ") for line in lines) if second]
    affixes: dict[str, Any] = {"continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False}
    tokenizer = Tokenizer(models.BPE(vocab, merges, **affixes))
    tokenizer.decoder = decoders.ByteLevel()
    if settings.name == "Qwen2Tokenizer":
        tokenizer.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(_QWEN2), behavior="isolated")
        inner = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, inner])
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    content: Content = json.loads(tokenizer.to_str())
    if settings.name in ("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer"):
        first, last = _named(settings, "cls_token", vocab), _named(settings, "sep_token", vocab)
        content["post_processor"] = _roberta(first, last, vocab)
    elif settings.name == "GPT2Tokenizer" and settings.flag("add_bos_token", False):
        content["post_processor"] = template(_named(settings, "bos_token", vocab), None, vocab)
    return content


def _vocab(path: Path) -> dict[str, int]:
    try:
        vocab = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as err:
        raise PosexportError(f"vocab.json is not valid JSON ({err}): download it again") from err
    if not isinstance(vocab, dict) or not all(isinstance(number, int) for number in vocab.values()):
        raise PosexportError("vocab.json holds no vocabulary: it must be a JSON object of ids by token")
    return vocab


_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _roberta(first: str, last: str, vocab: Mapping[str, int]) -> Content:
    ends = {"sep": [last, vocab[last]], "cls": [first, vocab[first]]}
    return {"type": "RobertaProcessing", **ends, "trim_offsets": True, "add_prefix_space": False}
