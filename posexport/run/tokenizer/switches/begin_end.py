"""``add_bos_token`` and ``add_eos_token``: special tokens that the post-processor adds around a text.

transformers 4 follows them in the classes of Llama, Gemma, GPT-NeoX and Cohere, with defaults of the class.
transformers 5 follows the post-processor of tokenizer.json alone.
"""

from typing import Any

from posexport.run.tokenizer.settings import Settings
from posexport.run.tokenizer.switches.switch import Content, Switch, vocabulary

ADDED = {"add_bos_token": "bos_token", "add_eos_token": "eos_token"}
_DEFAULTS = {"add_bos_token": True, "add_eos_token": False}


def apply(content: Content, settings: Settings) -> list[str]:
    if not any(settings.says(key) for key in ADDED) and not settings.facts.template:
        return []
    ids = vocabulary(content)
    tokens = {key: settings.token(name) for key, name in ADDED.items()}
    has = _has(content, ids, tokens)
    if not settings.facts.template:
        return _unheard(settings, has)
    # the tokens to add, by the settings or the class's defaults
    remarks, adds = [], dict(has)
    for key, token in tokens.items():
        default = settings.facts.template_default
        if settings.says(key) or default is not None:
            adds[key] = settings.flag(key, bool(default))
        if adds[key] and not has[key] and (token is None or token not in ids):
            remarks.append(f"{settings.shown(key)}, and no file names a {ADDED[key]} of the vocabulary: none is added")
            adds[key] = False
        if has[key] != _DEFAULTS[key] and not settings.says(key) and default is None:
            remarks.append(
                f"no file says {key}: texts are as the post-processor of tokenizer.json has them, as in transformers "
                f"5; transformers 4.57 takes {str(_DEFAULTS[key]).lower()}"
            )
    # a new post-processor where the file's adds other tokens
    changed = [key for key in ADDED if adds[key] != has[key]]
    if changed:
        first, last = (tokens[key] if adds[key] else None for key in ADDED)
        content["post_processor"] = template(first, last, ids)
        said = [settings.shown(key) for key in changed if settings.says(key)]
        if said:
            remarks.append(
                f"{' and '.join(said)}, and the post-processor of tokenizer.json the opposite: tokenizer_config.json "
                "is followed, as in transformers 4.57; transformers 5 follows tokenizer.json"
            )
    return remarks


def template(first: str | None, last: str | None, ids: dict[str, int]) -> dict[str, Any]:
    """A TemplateProcessing post-processor: ``first`` before each text, ``last`` after it; None: no token."""

    def around(sequence: str, kind: int) -> list[dict[str, Any]]:
        text = {"Sequence": {"id": sequence, "type_id": kind}}
        ends = [None if token is None else {"SpecialToken": {"id": token, "type_id": kind}} for token in (first, last)]
        return [item for item in (ends[0], text, ends[1]) if item is not None]

    used = {
        token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (first, last) if token is not None
    }
    single = around("A", 0)
    return {"type": "TemplateProcessing", "single": single, "pair": single + around("B", 1), "special_tokens": used}


def _unheard(settings: Settings, has: dict[str, bool]) -> list[str]:
    """Remarks for keys that no version of transformers follows in this class."""
    return [
        f"{settings.shown(key)}, and the post-processor of tokenizer.json the opposite, which transformers follows "
        f"for {settings.name or 'this class'}"
        for key in ADDED
        if settings.says(key) and settings.flag(key, False) != has[key]
    ]


def _has(content: Content, ids: dict[str, int], tokens: dict[str, str | None]) -> dict[str, bool]:
    """Whether the post-processor of ``content`` adds the tokens."""
    before, behind = ends(content.get("post_processor"))
    numbers = {key: ids.get(token) if token is not None else None for key, token in tokens.items()}
    return {
        "add_bos_token": numbers["add_bos_token"] is not None and numbers["add_bos_token"] in before,
        "add_eos_token": numbers["add_eos_token"] is not None and numbers["add_eos_token"] in behind,
    }


def ends(processor: dict[str, Any] | None) -> tuple[list[int], list[int]]:
    """The ids that a post-processor adds before a text and after it."""
    kind = None if processor is None else processor.get("type")
    if processor is None or kind == "ByteLevel":
        return [], []
    if kind == "Sequence":
        sides_of_steps = [ends(step) for step in processor["processors"]]
        return [number for pair in sides_of_steps for number in pair[0]], [
            number for pair in sides_of_steps for number in pair[1]
        ]
    if kind in ("BertProcessing", "RobertaProcessing"):
        return [processor["cls"][1]], [processor["sep"][1]]
    ids = {name: token["ids"] for name, token in (processor.get("special_tokens") or {}).items()}
    sides: tuple[list[int], list[int]] = ([], [])
    seen = False
    for item in processor.get("single") or []:
        seen = seen or "Sequence" in item
        if "SpecialToken" in item:
            sides[seen].extend(ids.get(item["SpecialToken"]["id"], []))
    return sides


SWITCH = Switch(tuple(ADDED), apply)
