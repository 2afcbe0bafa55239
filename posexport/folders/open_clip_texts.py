"""The tokenizer.json of an open_clip folder, from its ``text_cfg``: open_clip's CLIP vocabulary, or the folder's.

open_clip also repairs broken character encodings (ftfy) and HTML entities. A tokenizer.json cannot describe that.
"""

import gzip
import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posexport.base.system.scratch import scratch_folder
from posexport.checkpoints.directory import Directory
from posexport.errors import PosexportError
from posexport.run.tokenizer.entries import byte_letters

_TOKENIZER = "tokenizer.json"
#: first and last token of every text, in open_clip's CLIP vocabulary
_BEGIN, _END = "<start_of_text>", "<end_of_text>"
#: pre-tokenizer: merges never cross the boundaries of these matches
_WORDS = r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""
#: lines of the vocabulary file that are merges; a heading is before them, unused merges are after them
_MERGES = slice(1, 49152 - 256 - 2 + 1)
_REPAIRS = "open_clip also repairs broken encodings and HTML entities in texts, which the bundle's tokenizer leaves"
_Step = dict[str, Any]
_NFC: _Step = {"type": "NFC"}
_BLANKS: _Step = {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}
_STRIP: _Step = {"type": "Strip", "strip_left": True, "strip_right": True}
#: Python's str.lower: it writes the Greek sigma differently at the end of a word
_LOWER: list[_Step] = [
    {"type": "Replace", "pattern": {"Regex": r"(?<=\p{L})Σ(?!\p{L})"}, "content": "ς"},
    {"type": "Lowercase"},
]
_PUNCTUATION: _Step = {
    "type": "Replace",
    "pattern": {"Regex": "[" + "".join(f"\\{mark}" for mark in string.punctuation) + "]"},
    "content": "",
}
_UNDERSCORES: _Step = {"type": "Replace", "pattern": {"String": "_"}, "content": " "}
#: normalizer steps by open_clip's names of its cleaning functions
_CLEANED: dict[str, list[_Step]] = {
    "whitespace": [_NFC, _BLANKS, _STRIP],
    "lower": [_NFC, _BLANKS, _STRIP, *_LOWER],
    "canonicalize": [_NFC, _UNDERSCORES, _PUNCTUATION, *_LOWER, _BLANKS, _STRIP],
}


def tokenizer_files(
    open_clip: Any, files: Directory, named: Mapping[str, Path], text: Mapping[str, Any]
) -> tuple[dict[str, Path], list[str]]:
    """The tokenizer files, by their names in the bundle, and remarks; no files if the bundle accepts ids only.

    Args:
        open_clip: the module open_clip.
        files: the folder.
        named: tokenizer files of the folder.
        text: ``text_cfg``.

    Raises:
        PosexportError: the folder's tokenizer.json is not a JSON object.
    """
    options = dict(text.get("tokenizer_kwargs") or {})
    is_clip = not text.get("hf_tokenizer_name")
    clean = options.pop("clean", "lower" if is_clip else "whitespace")
    # every other key changes ids, even if its value is null
    unsupported = [*options, *(["tokenizer_mode"] if text.get("tokenizer_mode") else [])]
    if unsupported or clean not in _CLEANED:
        said = f"tokenizer_kwargs.clean = {clean!r:.30}" if clean not in _CLEANED else unsupported[0]
        return {}, [f"the bundle takes ids and no texts: text_cfg says {said}, which no tokenizer.json describes"]
    if is_clip:
        # open_clip too ignores a tokenizer.json in the folder here; that file pads with another id
        content = _clip_tokenizer(Path(open_clip.__file__).with_name("bpe_simple_vocab_16e6.txt.gz"))
        copied: dict[str, Path] = {}
    elif _TOKENIZER in named:
        content, copied = files.json(_TOKENIZER), dict(named)
    else:
        return {}, [f"the bundle takes ids and no texts: the folder has no {_TOKENIZER}"]
    if not isinstance(content, dict):
        raise PosexportError(f"{files.path}/{_TOKENIZER} holds no JSON object; replace it by the checkpoint's")
    before = content.get("normalizer")
    steps = [*_CLEANED[clean], *([] if before is None else [before])]
    content["normalizer"] = {"type": "Sequence", "normalizers": steps}
    path = scratch_folder() / _TOKENIZER
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8", newline="\n")
    return {**copied, _TOKENIZER: path}, [_REPAIRS]


def _clip_tokenizer(path: Path) -> dict[str, Any]:
    """The content of a tokenizer.json for `open_clip.SimpleTokenizer`; ``path`` is the file with its merges."""
    merges = [line.split() for line in gzip.decompress(path.read_bytes()).decode().split("\n")[_MERGES]]
    letters = [*byte_letters().values()]
    words = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in merges), _BEGIN, _END]
    ids = {word: number for number, word in enumerate(words)}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        # the padding id is 0, the exclamation mark: if it were named here, transformers would make it a special token
        "padding": None,
        "added_tokens": [{"id": ids[token], "content": token, **special} for token in (_BEGIN, _END)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": _WORDS}, "behavior": "Removed", "invert": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": [_END, ids[_END]],
            "cls": [_BEGIN, ids[_BEGIN]],
            "trim_offsets": False,
            "add_prefix_space": False,
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "</w>",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": ids,
            "merges": merges,
        },
    }
