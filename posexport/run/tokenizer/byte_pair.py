"""Byte-pair encoding: trains a tokenizer on a text, encodes with it, and adds it to a bundle. Imports no torch.

Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units" (arXiv:1508.07909), section 3.2,
as the `tokenizers` library does it. Words are separated by white space. The end mark ``</w>`` is part of a word's last
letter, as in the authors' released code from version 0.2 on, and no separate symbol as in the listing of the paper:
``low`` begins as ``l o w</w>``.

Of pairs that are equally frequent the library merges the one with the lowest id of the first token, then of the second
token. Letters that end words have the first ids, then all letters, both in the order of code points, then merged
tokens, in the order of merging. (The library alone numbers the first kind at random, and so breaks ties differently
from run to run; `train` numbers them for it.)
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from posexport.errors import PosexportError
from posexport.run.tokenizer.settings import TOKENIZER

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from posexport.sources.source import Source

END = "</w>"
#: files of a folder that belong to its tokenizer
_FOLDER = (TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
#: ids 0 and 1: padding, and a letter that the corpus does not have
SPECIAL = ("<pad>", "<unk>")


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained tokenizer: ``data`` is the content of its ``tokenizer.json``, ``size`` how many tokens it knows."""

    data: bytes
    size: int
    merges: list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A text's tokens and their ids."""

    text: str
    tokens: list[str]
    ids: list[int]


def train(corpus: Path, vocab_size: int) -> Trained:
    """Merge the most frequent pair of tokens until there are ``vocab_size`` tokens, or no word has a pair left.

    Raises:
        PosexportError: a corpus that is no UTF-8 text or has no words, or a ``vocab_size`` below what `SPECIAL` and
            the corpus's letters need.
    """
    from tokenizers import trainers

    tokenizer = _fresh([], {})
    letters, last = _letters(corpus, tokenizer)
    if not last:
        raise PosexportError(f"{corpus} has no words; give a text to learn from")
    known = [*SPECIAL, *(letter + END for letter in sorted(last))]
    needed = len(known) + len(letters)
    if vocab_size < needed:
        raise PosexportError(
            f"--vocab-size {vocab_size} is too small for {corpus}: its letters and {', '.join(SPECIAL)} need {needed}"
        )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=0,
        show_progress=False,
        special_tokens=known,  # so that their ids are these; they are ordinary tokens of the finished model
        end_of_word_suffix=END,
    )
    tokenizer.train_from_iterator(_lines(corpus), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [(first, second) for first, second in model["merges"]]
    finished = _fresh(merges, model["vocab"])
    finished.add_special_tokens(list(SPECIAL))
    return Trained((finished.to_str(pretty=True) + "\n").encode(), len(model["vocab"]), merges)


def encode(path: Path, texts: Sequence[str]) -> list[Encoded]:
    """Each text in the tokens of the tokenizer in ``path``, neither cut nor padded."""
    tokenizer = read(path)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    encodings = tokenizer.encode_batch(list(texts))
    return [Encoded(text, list(e.tokens), list(e.ids)) for text, e in zip(texts, encodings, strict=True)]


def read(path: Path) -> "Tokenizer":
    """The tokenizer in a ``tokenizer.json``; PosexportError where there is none."""
    from tokenizers import Tokenizer

    try:
        data = path.read_bytes()
    except OSError as err:
        raise PosexportError(f"cannot read the tokenizer {path}: {err.strerror}; give a tokenizer.json") from err
    try:
        return Tokenizer.from_buffer(data)
    except Exception as err:  # the library raises Exception itself
        raise PosexportError(f"{path} is no tokenizer.json: {err}; make one with posexport tokenizer train") from err


def with_tokenizer(source: "Source", path: Path) -> "Source":
    """``source`` with the tokenizer in ``path``, a tokenizer.json or a folder with one, for its bundle.

    Of a folder all files of a tokenizer are added: tokenizer_config.json, a chat template ...

    Raises:
        PosexportError: a file that is no tokenizer, one with more tokens than the model, a model without token ids, or
            one that brings a tokenizer: its weights were trained with that one, another's numbers mean other words.
    """
    if TOKENIZER in source.files:
        raise PosexportError(
            f"{source.name} brings its own {TOKENIZER}, which its weights were trained with; leave --tokenizer out, or "
            f"move that file away"
        )
    files = {TOKENIZER: path}
    if path.is_dir():
        files = {name: path / name for name in _FOLDER if (path / name).is_file()}
        path = path / TOKENIZER
    spec = next((spec for spec in source.inputs if spec.role == "tokens"), None)
    if spec is None:
        raise PosexportError(f"{source.name} takes no token ids, so --tokenizer does not fit it; leave it out")
    highest = max(read(path).get_vocab(with_added_tokens=True).values(), default=-1)
    if highest < 0:
        raise PosexportError(f"the tokenizer {path} knows no tokens; make one with posexport tokenizer train")
    if spec.size is not None and highest >= spec.size:
        raise PosexportError(
            f"the tokenizer {path} numbers its tokens up to {highest}, the model {source.name} takes ids below "
            f"{spec.size}; give a tokenizer of at most {spec.size} tokens, or a model with a larger vocabulary"
        )
    return msgspec.structs.replace(source, files={**source.files, **files})


def _fresh(merges: list[tuple[str, str]], vocab: dict[str, int]) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    trained: dict[str, Any] = {"vocab": vocab, "merges": merges} if vocab else {}
    tokenizer = Tokenizer(models.BPE(**trained, unk_token=SPECIAL[1], end_of_word_suffix=END))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder(suffix=END)
    return tokenizer


def _letters(corpus: Path, tokenizer: "Tokenizer") -> tuple[set[str], set[str]]:
    """All letters of the corpus, and those that end a word."""
    letters, last = set[str](), set[str]()
    for line in _lines(corpus):
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(line):
            letters.update(word)
            last.add(word[-1])
    return letters, last


def _lines(corpus: Path) -> Iterator[str]:
    try:
        with corpus.open(encoding="utf-8") as file:
            yield from file
    except UnicodeDecodeError as err:
        raise PosexportError(f"{corpus} is no UTF-8 text (byte {err.start}: {err.reason}); give a text file") from err
    except OSError as err:
        raise PosexportError(f"cannot read the corpus {corpus}: {err.strerror}; give a text file") from err
