"""Comparison of a bundle's tokenizer with transformers' on texts, pairs and conversations.

All inputs of a model that a tokenizer gives are compared: ids, mask and token types.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from posexport.run.tokenizer import library
from posexport.run.tokenizer.sample_texts import CHATS, sample_pairs, sample_texts
from posexport.run.tokenizer.settings import Settings
from posexport.run.tokenizer.switches import lower_first, split_special

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: applies the chat template of a folder to a conversation by the runtime's code; None: the folder has no template
Render = Callable[[Path, Sequence[Mapping[str, Any]]], str | None]


@dataclass
class Comparison:
    """``checked``: the manifest's ``tokenizer``; ``remarks``: sentences for the user."""

    checked: str
    remarks: list[str] = field(default_factory=list)


def compare(data: bytes, files: Mapping[str, Path], settings: Settings, render: Render | None) -> Comparison | None:
    """Compare ``data``, the bundle's tokenizer.json, with ``AutoTokenizer`` of ``files``. None without transformers."""
    if not library.is_installed():
        return None
    from tokenizers import Tokenizer

    name = f"transformers {library.version()}"
    with library.folder(files) as folder, library.quiet():
        try:
            theirs = library.load(folder, settings.handed_on)
            if settings.lowers_first:
                lower_first.apply_to_library(theirs)
        except Exception as err:  # noqa: BLE001 - whatever the library raises
            reason = " ".join(str(err).split())[:200]
            return Comparison("by rules", [f"{name} does not load this tokenizer, so ids are by rules: {reason}"])
        # ids of texts and pairs, chats, and texts that are decoded
        ours = Tokenizer.from_buffer(data)
        ours.no_truncation()
        ours.no_padding()
        ours.encode_special_tokens = split_special.is_followed(settings)
        texts = sample_texts(map(str, getattr(theirs, "all_special_tokens", [])))
        inputs: list[_Input] = [*texts, *sample_pairs(texts)]
        different = _different(_bundle_rows(ours, settings), _library_rows(theirs, settings), inputs)
        chats = [] if render is None else _chats(name, ours, theirs, folder, render)
        decodes = settings.generates and not any(_first(a, b) == IDS for _, a, b in different)
        decoding = _decoded(name, ours, theirs, texts) if decodes else []
    checked = f"compared with {name}"
    if different or chats:
        checked += f": {len(different) + len(chats)} differ"
    sentences = _sentences(f"{name} ({type(theirs).__name__})", different, len(inputs), settings)
    return Comparison(checked, [*sentences, *chats, *decoding])


#: the inputs of a model that a tokenizer gives
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
_Result = TypeVar("_Result")
_Input = str | tuple[str, str]
#: what a tokenizer gives for a text or pair, by name; under `IDS` the error that it raises
_Row = dict[str, list[int] | str]
_Rows = Callable[[_Input], Mapping[str, list[int]]]
#: a text or pair, the bundle's row and the library's
_Different = tuple[_Input, _Row, _Row]


def _bundle_rows(tokenizer: "Tokenizer", settings: Settings) -> _Rows:
    def row(item: _Input) -> dict[str, list[int]]:
        encoding = tokenizer.encode(*([item] if isinstance(item, str) else item))
        result = {IDS: list(encoding.ids), MASK: list(encoding.attention_mask)}
        if _types_count(item, settings):
            result[TYPES] = list(encoding.type_ids) if settings.types_given else [0] * len(encoding.ids)
        return result

    return row


def _library_rows(tokenizer: Any, settings: Settings) -> _Rows:
    """What it does not give has the default of transformers' models."""

    def row(item: _Input) -> dict[str, list[int]]:
        rows = tokenizer(*([item] if isinstance(item, str) else item))
        count = len(rows[IDS])
        result = {IDS: list(rows[IDS]), MASK: list(rows.get(MASK, [1] * count))}
        if _types_count(item, settings):
            result[TYPES] = list(rows.get(TYPES, [0] * count))
        return result

    return row


def _types_count(item: _Input, settings: Settings) -> bool:
    return settings.takes_types and (settings.takes_pairs or isinstance(item, str))


def _different(bundle: _Rows, library: _Rows, inputs: Sequence[_Input]) -> list[_Different]:
    """The texts and pairs with different rows, or that only one of both encodes."""
    triples = [(item, _row(bundle, item), _row(library, item)) for item in inputs]
    return [
        (item, a, b) for item, a, b in triples if a != b and not (isinstance(a[IDS], str) and isinstance(b[IDS], str))
    ]


def _row(rows: _Rows, item: _Input) -> _Row:
    row = _result(rows, item)
    return {IDS: row} if isinstance(row, str) else dict(row)


def _result(encode: Callable[[Any], _Result], item: Any) -> _Result | str:
    """The result for a text or pair, or the error that it raises."""
    try:
        return encode(item)
    except BaseException as err:  # tokenizers raises Exception, and its panics are none
        if isinstance(err, KeyboardInterrupt | SystemExit):
            raise
        return " ".join(str(err).split())[:200]


def _first(a: _Row, b: _Row) -> str:
    """The first input that differs: those after other ids differ too."""
    return next(key for key in (IDS, MASK, TYPES) if a.get(key) != b.get(key))


def _sentences(name: str, different: Sequence[_Different], count: int, settings: Settings) -> list[str]:
    """A remark on each input of the model that differs, with the shortest example."""
    followed = "transformers 4.57" if settings.name == "PreTrainedTokenizerFast" else "tokenizer.json"
    than = {
        IDS: "other ids than tokenizer.json with the settings of this folder",
        MASK: "another attention_mask than the bundle, which masks padding alone",
        TYPES: f"other token_type_ids than the bundle, which follows {followed} there",
    }
    remarks = []
    for key, sentence in than.items():
        rows = [(item, a[key], b[key]) for item, a, b in different if _first(a, b) == key]
        if rows:
            text, bundle, library = min(rows, key=lambda row: len(row[1]) + len(row[0]))
            remarks.append(
                f"{name} gives {sentence}, for {len(rows)} of {count} texts and pairs, such as {_short(text)}: "
                f"{_short(library)}, in the bundle {_short(bundle)}"
            )
    return remarks


def _decoded(name: str, ours: "Tokenizer", theirs: Any, texts: list[str]) -> list[str]:
    """A remark if ids are decoded to different texts."""
    every = [_result(lambda text: list(ours.encode(text).ids), text) for text in texts]
    rows = [ids for ids in every if isinstance(ids, list) and len(ids) < 200]
    bundle_texts = [ours.decode(ids, skip_special_tokens=True) for ids in rows]
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    library_texts = [theirs.decode(ids, **options) for ids in rows]
    different = [pair for pair in zip(bundle_texts, library_texts, strict=True) if pair[0] != pair[1]]
    if not different:
        return []
    bundle_text, library_text = min(different, key=lambda pair: len(pair[0]))
    return [
        f"{name} decodes {len(different)} of {len(rows)} texts otherwise, such as to {_short(library_text)}, in the "
        f"bundle {_short(bundle_text)}"
    ]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:56]} ..."


def _chats(name: str, ours: "Tokenizer", theirs: Any, folder: Path, render: Render) -> list[str]:
    """A remark about the first conversation with a different prompt or different ids."""
    if not getattr(theirs, "chat_template", None):
        return []
    for chat in CHATS:
        try:
            library_text = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        except Exception:  # noqa: BLE001 - a template refuses what it does not know
            continue
        bundle_text = render(folder, chat)
        library_ids = _result(lambda text: list(theirs(text, add_special_tokens=False)["input_ids"]), library_text)
        bundle_ids = _result(lambda text: list(ours.encode(text, add_special_tokens=False).ids), library_text)
        if bundle_text != library_text or bundle_ids != library_ids:
            return [
                f"the chat template gives another prompt than with {name} for {_short(chat)}: {_short(library_text)}, "
                f"in the bundle {_short(bundle_text)}"
            ]
    return []
