"""Reads a reranker's chat template and its options: how a query and a document become messages."""

import re
from typing import Any

import msgspec

from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.text_rules import optional, texts_config
from posexport.errors import PosexportError
from posexport.spec import PairRules
from posexport.text_rules import MessageFormat

TEMPLATE = "chat_template.jinja"
#: files with the template in older checkpoints; the first file with a template is used
_OLDER = ("tokenizer_config.json", "chat_template.json")
#: model types with ``flat`` messages for any template (sentence-transformers 6)
_FLAT = ("apertus", "deepseek_v3", "gpt_oss", "seed_oss")
#: parts of templates that read lists of contents
_STRUCTURED = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
#: ``processing_kwargs``: groups of options, with the options that are followed or have no effect
_OPTIONS: dict[str, tuple[str, ...]] = {
    "text": ("max_length", "padding", "truncation", "padding_side", "logits_to_keep"),
    "common": ("return_tensors",),
}


def template_of(directory: Directory, below: str) -> str | dict[str, Any] | list[Any] | None:
    """The chat template, or the file's list or table of named templates; None without one."""
    if (path := directory.find(below + TEMPLATE)) is not None:
        return path.read_text(encoding="utf-8", errors="replace")
    for name in _OLDER:
        config = optional(directory, below + name)
        template = None if config is None else config.values.get("chat_template")
        if isinstance(template, str | dict | list):
            return template
    return None


def names_roles(template: Any) -> bool:
    """Whether a template reads the roles ``query`` and ``document``."""
    return isinstance(template, str) and all(
        re.search(rf"[\"']{role}[\"']", template) for role in ("query", "document")
    )


def message_format(model_type: Any, template: Any) -> MessageFormat:
    """Whether messages are flat or structured, inferred as in sentence-transformers."""
    if model_type in _FLAT:
        return "flat"
    if not isinstance(template, str) or not template:
        return "structured"
    return "structured" if any(marker in template for marker in _STRUCTURED) else "flat"


def with_messages(directory: Directory, below: str, rules: PairRules) -> PairRules:
    """The rules, with ``messages`` set if the transformer's ``modality_config`` has messages."""
    texts = texts_config(directory, below)
    if texts is None:
        return rules
    rules = _with_options(texts, rules)
    modes = texts.values.get("modality_config")
    stated = modes.get("message") if isinstance(modes, dict) else None
    if stated is None:
        return rules
    template = template_of(directory, below)
    if template is None:
        raise PosexportError(
            f"{texts.label} says that texts are messages (modality_config), and there is no chat template; add the "
            f"{TEMPLATE} that belongs to the model"
        )
    form = stated.get("format", "auto") if isinstance(stated, dict) else None
    if form == "auto":
        form = message_format(Config(directory, f"{below}config.json").values.get("model_type"), template)
    if form not in ("flat", "structured") or stated.get("method_output_name") not in (
        None,
        "logits",
        "last_hidden_state",
    ):
        raise PosexportError(
            f"{texts.label} says modality_config.message = {stated!r:.120}; messages must be flat or "
            "structured, and give logits"
        )
    return msgspec.structs.replace(rules, messages=form)


def _with_options(texts: Config, rules: PairRules) -> PairRules:
    """The rules with the options of ``processing_kwargs``."""
    groups = texts.values.get("processing_kwargs") or {}
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise PosexportError(f"{texts.label} says processing_kwargs = {groups!r:.80}; it must hold groups of options")
    for name, group in groups.items():
        if name == "chat_template":
            continue
        if other := sorted(set(group) - set(_OPTIONS.get(name, ()))):
            raise PosexportError(
                f"{texts.label} says processing_kwargs.{name}.{other[0]} = {group[other[0]]!r:.60}, which is not read "
                "here; remove it if the model does not need it"
            )
    chat = dict(groups.get("chat_template", {}))
    length = groups.get("text", {}).get("max_length")
    if length is not None and (not isinstance(length, int) or length < 1):
        raise PosexportError(
            f"{texts.label} says processing_kwargs.text.max_length = {length!r:.60}; it must be at least 1"
        )
    restore_suffix = chat.pop("restore_suffix", True)
    return msgspec.structs.replace(
        rules, max_length=length or rules.max_length, chat_options=chat, suffix_kept=bool(restore_suffix)
    )
