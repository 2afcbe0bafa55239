"""The entries of vocabulary files: a tokenizer.json that is made of one must have all of them.

transformers 5 makes a tokenizer of special tokens alone, without an error, where a folder lacks the file that its class
reads: an ALBERT with a ``vocab.txt``.
"""

import base64
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: printable characters, which represent their bytes in a byte-level vocabulary
_PRINTED = (("!", "~"), ("¡", "¬"), ("®", "ÿ"))


@dataclass(frozen=True)
class Entries:
    """Ids by token; ``shifted``: classes add a constant to them (SentencePiece, fairseq's special tokens first)."""

    ids: dict[str, int]
    shifted: bool = False

    def lost(self, vocabulary: Mapping[str, int]) -> list[str]:
        """The tokens that ``vocabulary`` lacks, or has under another id."""
        shifts = Counter(vocabulary[token] - number for token, number in self.ids.items() if token in vocabulary)
        shift = shifts.most_common(1)[0][0] if self.shifted and shifts else 0
        return [token for token, number in self.ids.items() if vocabulary.get(token) != number + shift]


def entries(path: Path) -> Entries | None:
    """The entries of a vocabulary file; None for merges and for a file that is not of its kind."""
    if path.name == "vocab.txt":
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        return Entries({line.rstrip("\r"): number for number, line in enumerate(lines) if line.strip()})
    if path.name == "vocab.json":
        return _of_json(path.read_bytes())
    if path.suffix in (".model", ".spm"):
        data = path.read_bytes()
        return _pieces(data) or _ranks(data)
    return None


def byte_letters() -> dict[int, str]:
    """The characters that represent bytes in a byte-level vocabulary (GPT-2), by byte: printable ones first."""
    printed = [code for first, last in _PRINTED for code in range(ord(first), ord(last) + 1)]
    others = [code for code in range(256) if code not in printed]
    return {code: chr(code) for code in printed} | {code: chr(256 + at) for at, code in enumerate(others)}


def _of_json(data: bytes) -> Entries | None:
    try:
        vocab = json.loads(data)
    except (ValueError, RecursionError):
        return None
    are_ids = isinstance(vocab, dict) and all(isinstance(number, int) for number in vocab.values())
    return Entries(vocab) if are_ids else None


def _pieces(data: bytes) -> Entries | None:
    """The pieces of a SentencePiece model that stand for text."""
    try:
        from sentencepiece import SentencePieceProcessor

        model = SentencePieceProcessor(model_proto=data)
    except (ImportError, RuntimeError):
        return None
    other = (model.is_unknown, model.is_control, model.is_unused, model.is_byte)
    numbers = [number for number in range(model.get_piece_size()) if not any(kind(number) for kind in other)]
    return Entries({model.id_to_piece(number): number for number in numbers}, shifted=True)


def _ranks(data: bytes) -> Entries | None:
    """The tokens of a tiktoken model: lines of base64 and a rank."""
    letters = byte_letters()
    try:
        pairs = [line.split() for line in data.splitlines()]
        tokens = {base64.b64decode(token): int(rank) for token, rank in pairs}
    except ValueError:
        return None
    return Entries({"".join(letters[byte] for byte in token): rank for token, rank in tokens.items()})
