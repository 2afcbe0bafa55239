"""A bundle's tokenizer compared with transformers' on texts, pairs and conversations."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posexport.checkpoints.tokenizer import library, sentence_transformers
from posexport.checkpoints.tokenizer.sample_texts import CHATS, sample_pairs, sample_texts
from posexport.checkpoints.tokenizer.settings import Settings

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: renders a conversation as the bundle does, from a folder with its files; None where the folder has no template
Render = Callable[[Path, Sequence[Mapping[str, Any]]], str | None]


@dataclass
class Comparison:
    """``checked``: for the manifest."""

    checked: str
    remarks: list[str] = field(default_factory=list)


def compare(data: bytes, files: Mapping[str, Path], settings: Settings, render: Render | None) -> Comparison | None:
    """``data``: the bundle's tokenizer.json; ``files``: what the library reads. None where it is not installed."""
    if not library.is_installed():
        return None
    from tokenizers import Tokenizer

    name = f"transformers {library.version()}"
    with library.folder(files) as folder, library.quiet():
        try:
            theirs = library.load(folder, settings.handed_on)
            if sentence_transformers.asks(files):
                sentence_transformers.apply_to_library(theirs)
        except Exception as err:  # noqa: BLE001 - whatever the library raises
            reason = " ".join(str(err).split())[:200]
            return Comparison("by rules", [f"{name} does not load this tokenizer, so ids are by rules: {reason}"])
        ours = Tokenizer.from_buffer(data)
        ours.no_truncation()
        ours.no_padding()
        ours.encode_special_tokens = settings.flag("split_special_tokens", False)
        texts = sample_texts(map(str, getattr(theirs, "all_special_tokens", [])))
        different = _different(ours, theirs, texts, sample_pairs(texts))
        chats = [] if render is None else _chats(ours, theirs, folder, render)
        others = [] if different else _decoded(name, ours, theirs, texts)
    checked = f"compared with {name}"
    if not different and not chats:
        return Comparison(checked, others)
    return Comparison(f"{checked}: {len(different) + len(chats)} differ", [*_sentence(name, theirs, different), *chats])


_Asked = str | tuple[str, str]


def _different(
    ours: "Tokenizer", theirs: Any, texts: list[str], pairs: list[tuple[str, str]]
) -> list[tuple[_Asked, list[int], list[int]]]:
    """What has other ids, the bundle's and the library's."""
    asked: list[_Asked] = [*texts, *pairs]
    mine = [list(row.ids) for row in ours.encode_batch(asked)]
    other = [list(theirs(*([each] if isinstance(each, str) else each))["input_ids"]) for each in asked]
    return [row for row in zip(asked, mine, other, strict=True) if row[1] != row[2]]


def _sentence(name: str, theirs: Any, different: list[tuple[_Asked, list[int], list[int]]]) -> list[str]:
    if not different:
        return []
    text, mine, other = min(different, key=lambda row: len(row[1]) + len(row[0]))
    return [
        f"{name} ({type(theirs).__name__}) gives other ids than tokenizer.json with the settings of this folder, "
        f"for {len(different)} of 220 texts and pairs, such as {_short(text)}: {_short(other)}, in the bundle "
        f"{_short(mine)}"
    ]


def _decoded(name: str, ours: "Tokenizer", theirs: Any, texts: list[str]) -> list[str]:
    """A sentence where ids become other texts."""
    rows = [list(row.ids) for row in ours.encode_batch(texts) if len(row.ids) < 200]
    mine = [ours.decode(row, skip_special_tokens=True) for row in rows]
    other = [theirs.decode(row, skip_special_tokens=True) for row in rows]
    different = [pair for pair in zip(mine, other, strict=True) if pair[0] != pair[1]]
    if not different:
        return []
    own, wanted = min(different, key=lambda pair: len(pair[0]))
    return [
        f"{name} decodes {len(different)} of {len(rows)} texts otherwise, such as to {_short(wanted)}, in the bundle "
        f"{_short(own)}"
    ]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:56]} ..."


def _chats(ours: "Tokenizer", theirs: Any, folder: Path, render: Render) -> list[str]:
    """A sentence for each conversation that the bundle renders in another way."""
    if not getattr(theirs, "chat_template", None):
        return []
    remarks = []
    for chat in CHATS:
        try:
            text = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        except Exception:  # noqa: BLE001 - a template refuses what it does not know
            continue
        mine = render(folder, chat)
        wanted = theirs(text, add_special_tokens=False)["input_ids"]
        if mine != text or list(ours.encode(text, add_special_tokens=False).ids) != list(wanted):
            remarks.append(
                f"the chat template gives another prompt than with transformers for {_short(chat)}: {_short(text)}, in "
                f"the bundle {_short(mine)}"
            )
    return remarks[:1]
