"""Comparison of a bundle's tokenizer with transformers' on texts, pairs and conversations."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posexport.tokenizer import library
from posexport.tokenizer.sample_texts import CHATS, sample_pairs, sample_texts
from posexport.tokenizer.settings import Settings
from posexport.tokenizer.switches import lower_first, split_special

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
        pairs = sample_pairs(texts)
        different = _different(ours, theirs, texts, pairs)
        chats = [] if render is None else _chats(name, ours, theirs, folder, render)
        decoding = _decoded(name, ours, theirs, texts) if settings.generates and not different else []
    checked = f"compared with {name}"
    if not different and not chats:
        return Comparison(checked, decoding)
    return Comparison(
        f"{checked}: {len(different) + len(chats)} differ",
        [*_sentence(name, theirs, different, len(texts) + len(pairs)), *chats],
    )


_Input = str | tuple[str, str]
#: the ids of a text or pair, or the error that it raises
_Ids = list[int] | str
#: a text or pair, the bundle's ids and the library's
_Different = tuple[_Input, _Ids, _Ids]


def _different(ours: "Tokenizer", theirs: Any, texts: list[str], pairs: list[tuple[str, str]]) -> list[_Different]:
    """The texts and pairs with different ids, or that only one of both encodes."""

    def library(item: _Input) -> list[int]:
        return list(theirs(*([item] if isinstance(item, str) else item))["input_ids"])

    def bundle(item: _Input) -> list[int]:
        return list(ours.encode(*([item] if isinstance(item, str) else item)).ids)

    inputs: list[_Input] = [*texts, *pairs]
    triples = [(item, _ids(bundle, item), _ids(library, item)) for item in inputs]
    return [(item, a, b) for item, a, b in triples if a != b and not (isinstance(a, str) and isinstance(b, str))]


def _ids(encode: Callable[[Any], list[int]], item: _Input) -> _Ids:
    try:
        return encode(item)
    except BaseException as err:  # tokenizers raises Exception, and its panics are none
        if isinstance(err, KeyboardInterrupt | SystemExit):
            raise
        return " ".join(str(err).split())[:200]


def _sentence(name: str, theirs: Any, different: list[_Different], count: int) -> list[str]:
    if not different:
        return []
    text, bundle_ids, library_ids = min(different, key=lambda triple: len(triple[1]) + len(triple[0]))
    return [
        f"{name} ({type(theirs).__name__}) gives other ids than tokenizer.json with the settings of this folder, "
        f"for {len(different)} of {count} texts and pairs, such as {_short(text)}: {_short(library_ids)}, in the "
        f"bundle {_short(bundle_ids)}"
    ]


def _decoded(name: str, ours: "Tokenizer", theirs: Any, texts: list[str]) -> list[str]:
    """A remark if ids are decoded to different texts."""
    every = [_ids(lambda text: list(ours.encode(text).ids), text) for text in texts]
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
        library_ids = _ids(lambda text: list(theirs(text, add_special_tokens=False)["input_ids"]), library_text)
        bundle_ids = _ids(lambda text: list(ours.encode(text, add_special_tokens=False).ids), library_text)
        if bundle_text != library_text or bundle_ids != library_ids:
            return [
                f"the chat template gives another prompt than with {name} for {_short(chat)}: {_short(library_text)}, "
                f"in the bundle {_short(bundle_text)}"
            ]
    return []
