"""Texts to arrays, with a bundle's ``tokenizer.json`` and the `tokenizers` library."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import SEQUENCE, TOTAL, PairRules, TextRules
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import Manifest
from posexport.run.bundle.read import locate
from posexport.run.feeds import checked, limit_sentence, rows_of
from posexport.run.tokenizer.settings import gives_types

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"


class _AddedToken(msgspec.Struct):
    content: str


class _Config(msgspec.Struct):
    """The few fields of ``tokenizer_config.json`` that matter here."""

    padding_side: str = "right"
    truncation_side: str = "right"
    pad_token: str | _AddedToken | None = None
    #: special tokens, of any type in the file: other values than a token are ignored
    bos_token: Any = None
    eos_token: Any = None
    unk_token: Any = None
    sep_token: Any = None
    cls_token: Any = None
    mask_token: Any = None
    additional_special_tokens: Any = None
    extra_special_tokens: Any = None
    tokenizer_class: str | None = None
    model_input_names: list[str] | None = None
    split_special_tokens: bool | None = None

    @property
    def special_tokens(self) -> set[str]:
        """The contents of ``all_special_tokens`` of transformers' tokenizer."""
        pad = self.pad_token.content if isinstance(self.pad_token, _AddedToken) else self.pad_token
        named = [pad, self.bos_token, self.eos_token, self.unk_token, self.sep_token, self.cls_token, self.mask_token]
        for extra in (self.additional_special_tokens, self.extra_special_tokens):
            named += extra.values() if isinstance(extra, dict) else extra if isinstance(extra, list) else []
        contents = [token.get("content") if isinstance(token, dict) else token for token in named]
        return {content for content in contents if isinstance(content, str)}


def encoded(tokenizer: "Tokenizer", texts: Sequence[Any], **options: bool) -> list[Any]:
    """The encodings of texts, pairs, or words; ``options`` are those of ``Tokenizer.encode_batch``.

    Raises:
        PosexportError: the library fails: by an exception, or by a panic, which is none.
    """
    try:
        return list(tokenizer.encode_batch(list(texts), **options))
    except BaseException as err:
        if isinstance(err, KeyboardInterrupt | SystemExit):
            raise
        raise PosexportError(
            f"the tokenizer fails on these texts ({err}); convert again with the tokenizer.json of the model"
        ) from err


class Joined:
    """Concatenated encodings, with the attributes that `Texts.padded` reads."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.ids = [number for encoding in rows for number in encoding.ids]
        self.type_ids = [number for encoding in rows for number in encoding.type_ids]
        self.attention_mask = [1] * len(self.ids)


def adapted(rows: Sequence[Any], adapters: Sequence[int] | None) -> Sequence[Any]:
    """The encodings with the ids of their LoRA adapters; None: as they are."""
    return rows if adapters is None else [AdaptedRow(row, number) for row, number in zip(rows, adapters, strict=True)]


@dataclass(frozen=True)
class AdaptedRow:
    """An encoding, with the attributes that `Texts.padded` reads, and the id of its LoRA adapter."""

    encoding: Any
    adapter: int

    @property
    def ids(self) -> list[int]:
        return list(self.encoding.ids)

    @property
    def type_ids(self) -> list[int]:
        return list(self.encoding.type_ids)

    @property
    def attention_mask(self) -> list[int]:
        return list(self.encoding.attention_mask)


class Texts:
    """The tokenizer of a bundle, with padding and truncation by the manifest instead of by ``tokenizer.json``.

    Many ``tokenizer.json`` files were saved with truncation to 128 tokens, which would shorten texts silently.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        if TOKENIZER not in manifest.files:
            raise PosexportError(
                f"{directory} has no {TOKENIZER}, so it takes no texts; give ids to run or generate, or convert it "
                "again with --tokenizer FILE"
            )
        self._manifest = manifest
        self._config = _config(directory, manifest)
        self._gives_types = gives_types(self._config.tokenizer_class, self._config.model_input_names)
        data = locate(directory, TOKENIZER).read_bytes()
        self._rules = manifest.text_rules or TextRules()
        self._whole = self._prepared(_tokenizer(directory, data))
        self._rows = rows_of(manifest, self._whole)
        self._padding_id = self._find_padding_id()
        self.padding_side, self.truncation_side = self._find_sides()
        self._whole.no_padding()
        self._whole.no_truncation()
        self._cut = self._whole
        self._pair_rules = manifest.pair_rules or PairRules()
        stated = (manifest.limits.max_length, self._rules.max_length, self._pair_rules.max_length)
        ends = [end for end in stated if end is not None]
        self._read = functools.partial(_tokenizer, directory, data)
        if ends:
            self._cut = self._cut_at(min(ends))

    def fresh(self) -> "Tokenizer":
        """A copy of the tokenizer without padding and truncation, which the caller may change."""
        tokenizer = self._prepared(self._read())
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    def _cut_at(self, limit: int) -> "Tokenizer":
        """A copy of the tokenizer that truncates to ``limit`` tokens."""
        if limit < 1:
            raise PosexportError(f"the bundle cuts texts at {limit} tokens, it must be at least 1; convert it again")
        tokenizer = self._prepared(self._read())
        tokenizer.no_padding()
        tokenizer.enable_truncation(limit, direction=self.truncation_side)
        return tokenizer

    def _prepared(self, tokenizer: "Tokenizer") -> "Tokenizer":
        """The tokenizer with settings that tokenizer.json has no field for; in older bundles also ``lower_case``."""
        from tokenizers.normalizers import Lowercase, Sequence

        tokenizer.encode_special_tokens = bool(self._config.split_special_tokens)
        if self._manifest.tokenizer is not None:
            return tokenizer  # conversion wrote the settings of other files into tokenizer.json
        normalizer = tokenizer.normalizer
        steps: Any = normalizer if isinstance(normalizer, Sequence) else [normalizer]
        lowers = any(isinstance(step, Lowercase) for step in steps)
        if self._rules.lower_case and not lowers:
            tokenizer.normalizer = Sequence([Lowercase(), *([] if normalizer is None else [normalizer])])
        return tokenizer

    def tokenize(self, texts: Sequence[str], *, truncate: bool) -> dict[str, NDArray[np.int64]]:
        """Ids, mask and types of a batch, as far as the bundle takes them, padded to the longest text.

        Raises PosexportError for no texts, a text without tokens, and a text over the limit unless ``truncate``.
        """
        return self.padded(self.rows(texts, truncate=truncate))

    def rows(self, texts: Sequence[str], *, truncate: bool) -> list[Any]:
        """The encoding of each text, not padded. Raises the errors of `tokenize`."""
        check_texts(texts, "text")
        if truncate and self._rules.max_characters is not None:
            texts = [text[: self._rules.max_characters] for text in texts]
        rows = encoded(self._cut if truncate else self._whole, texts)
        limit = self._manifest.limits.max_length
        for number, encoding in enumerate(rows):
            if not encoding.ids:
                raise PosexportError(f"text {number} ({texts[number]!r}) has no tokens; leave it out")
            if limit is not None and len(encoding.ids) > limit:
                raise PosexportError(
                    f"text {number} has {len(encoding.ids)} tokens, {limit_sentence(self._manifest.limits)}; shorten "
                    f"it or give truncate=True to use its first {limit} tokens"
                )
        return self.checked(rows)

    def cut_rows(self, texts: Sequence[str], length: int | None, *, leaving: int) -> list[Any]:
        """The encoding of each text, truncated to ``length`` minus ``leaving`` tokens.

        ``length`` None: the limit of the text rules. The model's limit always applies.
        """
        stated = (self._rules.max_length if length is None else length, self._manifest.limits.max_length)
        ends = [end for end in stated if end is not None]
        tokenizer = self._whole
        if ends:
            tokenizer = self._cut_at(max(min(ends) - leaving, 1))
        return self.checked(encoded(tokenizer, texts))

    def checked(self, rows: Sequence[Any]) -> list[Any]:
        """Returns ``rows``; PosexportError for an id without a encoding in the model's embedding."""
        return checked(rows, self._rows, self._whole)

    def token_id(self, token: str) -> int | None:
        """The id of a token of the vocabulary; None for another string."""
        number: int | None = self._whole.token_to_id(token)
        return number

    def prompt_length(self, prompt: str) -> int:
        """The number of tokens of ``prompt`` at the start of a text, leading special tokens included.

        Counted by tokenizing the prompt alone, truncated like texts, without a special token at its end.
        """
        (encoding,) = encoded(self._cut, [prompt])
        ends = bool(encoding.ids) and (
            encoding.special_tokens_mask[-1] or encoding.tokens[-1] in self._config.special_tokens
        )
        return len(encoding.ids) - int(ends)

    def start(self, length: int, count: int) -> int:
        """The index of the first of ``count`` tokens after padding to ``length``."""
        return length - count if self.padding_side == "left" else 0

    def pairs(self, pairs: Sequence[tuple[str, str]], instruction: str | None) -> list[Any]:
        """The encoding of each pair, truncated to the limit of the rules or of the model; not padded."""
        rules = self._pair_rules
        for column in zip(*pairs, strict=True):
            check_texts(column, "text")
        if rules.template is None:
            return self.checked(encoded(self._cut, [tuple(pair) for pair in pairs]))
        stated = rules.instruction if instruction is None else instruction
        filled = [rules.template.format(instruction=stated, query=query, document=text) for query, text in pairs]
        ends = encoded(self._whole, [rules.before, rules.after], add_special_tokens=False)
        limit, taken = rules.max_length, sum(len(end.ids) for end in ends)
        if limit is not None and limit <= taken:
            raise PosexportError(f"the template alone has {taken} tokens, and pairs are cut at {limit}; convert again")
        rows = self.checked(encoded(self._whole, filled))
        for encoding in rows:
            if limit is not None:
                encoding.truncate(limit - taken, direction=self.truncation_side)
        return [Joined((ends[0], encoding, ends[1])) for encoding in rows]

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Prompt ids for generation, with the tokenizer's special tokens, neither truncated nor padded.

        Raises PosexportError for an empty text, or one without tokens.
        """
        check_texts(texts, "prompt")
        rows = []
        for number, (text, encoding) in enumerate(zip(texts, self.checked(encoded(self._whole, texts)), strict=True)):
            if not text or not encoding.ids:
                raise PosexportError(f"prompt {number} ({text!r}) has no tokens; give a text to continue")
            rows.append(list(encoding.ids))
        return rows

    def pieces(self, text: str) -> list[int]:
        """The ids of a text without the special tokens around it."""
        return list(self.checked(encoded(self._whole, [text], add_special_tokens=False))[0].ids)

    def cut_pieces(self, texts: Sequence[str], length: int | None) -> list[list[int]]:
        """The ids of `pieces` for each text, truncated to ``length`` tokens on the tokenizer's side."""
        rows = encoded(self._whole, texts, add_special_tokens=False)
        for encoding in rows:
            if length is not None:
                encoding.truncate(length, direction=self.truncation_side)
        return [list(encoding.ids) for encoding in rows]

    def special(self, text: str) -> int | None:
        """The id of a special token, which `decode` skips; None if ``text`` is not one."""
        added = self._whole.get_added_tokens_decoder()
        return next((int(number) for number, token in added.items() if token.special and token.content == text), None)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, without special tokens."""
        text: str = self._whole.decode(list(ids), skip_special_tokens=True)
        return text

    def padded(self, rows: Sequence[Any]) -> dict[str, NDArray[np.int64]]:
        """One batch of the encodings of `rows`, padded to the longest."""
        length = max(max(len(encoding.ids) for encoding in rows), self._manifest.limits.min_length)
        tokens = next((spec for spec in self._manifest.inputs if spec.role == "tokens"), None)
        if tokens is None:
            raise PosexportError("this bundle takes no token ids, so it cannot take texts; give arrays")
        columns = {"tokens": ("ids", self._padding_id), "mask": ("attention_mask", 0), "types": ("type_ids", 0)}
        arrays = {}
        for spec in self._manifest.inputs:
            if spec.role == "adapters" and all(isinstance(row, AdaptedRow) for row in rows):
                arrays[spec.name] = np.array([row.adapter for row in rows], np.int64)
            # a decoder's mask is over past and new tokens, and here there are no past ones
            if spec.role not in columns or [SEQUENCE if a == TOTAL else a for a in spec.axes] != tokens.axes:
                continue
            field, filler = columns[spec.role]
            untyped = spec.role == "types" and not self._gives_types
            try:
                array = arrays[spec.name] = np.full((len(rows), length), filler, dtype=np.int64)
            except MemoryError as err:
                raise PosexportError(
                    f"{len(rows)} texts padded to {length} tokens do not fit in memory; give fewer or shorter texts"
                ) from err
            for out, encoding in zip(array, rows, strict=True):
                count = len(encoding.ids)
                start = self.start(length, count)
                out[start : start + count] = 0 if untyped else getattr(encoding, field)
        masked = any(spec.role == "mask" and spec.name in arrays for spec in self._manifest.inputs)
        # a model whose texts all have one length was trained with padding that it reads
        masked = masked or isinstance(tokens.axes[-1], int)
        if not masked and any(len(encoding.ids) < length for encoding in rows):
            raise PosexportError(
                "this bundle takes no mask, so texts of different lengths cannot share a batch; run each"
            )
        return arrays

    def _find_sides(self) -> tuple[str, str]:
        """The sides of padding and truncation: from tokenizer.json if conversion rewrote it, else from its config."""
        sides = (self._config.padding_side, self._config.truncation_side)
        if self._manifest.tokenizer is None:
            return sides
        saved = (self._whole.padding, self._whole.truncation)
        padding, truncation = (
            side if fields is None else str(fields["direction"]) for side, fields in zip(sides, saved, strict=True)
        )
        return padding, truncation

    def _find_padding_id(self) -> int:
        if self._manifest.tokenizer is not None and self._whole.padding is not None:
            return int(self._whole.padding["pad_id"])
        token = self._config.pad_token
        name = token.content if isinstance(token, _AddedToken) else token
        padding = None if name is None else self._whole.token_to_id(name)
        if padding is None and self._whole.padding is not None:
            padding = self._whole.padding["pad_id"]
        if padding is None:
            padding = next((spec.padding for spec in self._manifest.inputs if spec.role == "tokens"), 0)
        return int(padding)


def check_texts(texts: Sequence[str], what: str) -> None:
    """Raise PosexportError unless ``texts`` is a list of Unicode strings."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise PosexportError(f"{what}s must be a list of strings, got {type(texts).__name__}; give [{what}]")
    if not texts:
        raise PosexportError(f"got no {what}s; give at least one")
    for number, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as err:
            raise PosexportError(f"{what} {number} ({text!a:.60}) is not Unicode; give it as UTF-8") from err


def _config(directory: Path, manifest: Manifest) -> _Config:
    if CONFIG not in manifest.files:
        return _Config()
    try:
        config = msgspec.json.decode(locate(directory, CONFIG).read_bytes(), type=_Config)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as err:
        raise PosexportError(f"cannot use {directory / CONFIG}: {err}; convert again with a sound one") from err
    for name in ("padding_side", "truncation_side"):
        if getattr(config, name) not in ("left", "right"):
            raise PosexportError(f"{directory / CONFIG}: {name} must be left or right, got {getattr(config, name)!r}")
    return config


def tokenizer_of(path: Path) -> "Tokenizer":
    """The tokenizer of a file, as saved; PosexportError for another file."""
    return _tokenizer(path.parent, path.read_bytes())


def _tokenizer(directory: Path, data: bytes) -> "Tokenizer":
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_buffer(data)
    except Exception as err:  # the library raises Exception itself
        raise PosexportError(f"cannot use {directory / TOKENIZER}: {err}; convert again with a sound one") from err
