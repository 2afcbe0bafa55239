"""The tokenizer of a bundle: a tokenizer.json that alone gives the ids of the checkpoint's tokenizer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from posexport.bundle.manifest import Manifest
from posexport.errors import PosexportError
from posexport.tokenizer.make import Model, make_tokenizer
from posexport.tokenizer.settings import TOKENIZER

if TYPE_CHECKING:
    from posexport.sources.source import Source


def with_tokenizer_made(source: "Source", directory: Path) -> "tuple[Source, str | None]":
    """``source`` with the tokenizer.json of its bundle, and the manifest's ``tokenizer``: how its ids were checked.

    The file is written into ``directory``. Remarks name what was changed or not followed. None without a tokenizer.
    """
    if not any(spec.role == "tokens" for graph in source.graphs.values() for spec in graph.inputs):
        return source, None
    rows = next((spec.size for spec in source.inputs if spec.role == "tokens"), None)
    rules = [rule.max_length for rule in (source.text_rules, source.pair_rules) if rule is not None]
    longest = source.limits.max_length
    generates = source.limits.kv_cache or bool(source.parts)
    cuts = [length for length in (*rules, longest if rules else None) if length is not None]
    result = make_tokenizer(source.files, Model(rows, min(cuts, default=None), longest, generates), render)
    files = source.files
    if result.data is not None:
        path = directory / TOKENIZER
        path.write_bytes(result.data)
        files = {**files, TOKENIZER: path}
    text_rules = source.text_rules
    if result.cut is not None and text_rules is not None:
        text_rules = msgspec.structs.replace(text_rules, max_length=result.cut)
    remarks = [*source.remarks, *result.remarks]
    return msgspec.structs.replace(source, files=files, text_rules=text_rules, remarks=remarks), result.checked


def render(folder: Path, messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The chat template of ``folder`` applied by the runtime's code; None if the folder has no template."""
    from posexport.runtime.chat import Chat

    files = {path.name: None for path in folder.iterdir()}
    try:
        return Chat(folder, cast(Manifest, SimpleNamespace(files=files))).render(messages)
    except PosexportError:
        return None
