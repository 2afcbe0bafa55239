"""Pairs of texts as two messages that a chat template joins, as rerankers that answer by a token read them.

The template decides what the model is asked; a text that is too long loses its end, and the template's last tokens,
where the model answers, are put back (``Transformer._restore_chat_template_suffix`` of sentence-transformers 6).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from posexport.errors import PosexportError
from posexport.runtime.chat import Chat, Message
from posexport.runtime.texts import Texts, check_texts
from posexport.spec import PairRules

#: two contents that have no token at their end in common: what is the same behind both is the template's
_FILLERS = ("0", "1 2 3 4")
#: a pair, and what it is with another query, or another document
_PROBES = (("alpha", "bravo"), ("charlie", "bravo"), ("alpha", "foxtrot"))


@dataclass(frozen=True)
class Row:
    """A text as the graph reads it."""

    ids: list[int]

    @property
    def type_ids(self) -> list[int]:
        return [0] * len(self.ids)

    @property
    def attention_mask(self) -> list[int]:
        return [1] * len(self.ids)


def message_rows(
    pairs: Sequence[tuple[str, str]], tokenizer: Texts, chat: Chat, rules: PairRules, prompt: str
) -> list[Row]:
    """The tokens of each pair behind ``prompt``, the system's message, cut where the rules say.

    Raises PosexportError where the template leaves out the query or the document.
    """
    for column in zip(*pairs, strict=True):
        check_texts(column, "text")
    _check_template(chat, rules)
    rendered = [_rendered(chat, rules, prompt, pair) for pair in pairs]
    rows = tokenizer.cut_pieces(rendered, rules.max_length)
    if rules.suffix_kept and any(len(ids) == rules.max_length for ids in rows):
        suffix = _suffix(tokenizer, chat, rules, prompt)
        rows = [_with_suffix(ids, suffix) if len(ids) == rules.max_length else ids for ids in rows]
    return [Row(ids) for ids in rows]


def _rendered(chat: Chat, rules: PairRules, prompt: str, pair: tuple[str, str]) -> str:
    contents = [("system", prompt)] * bool(prompt) + list(zip(("query", "document"), pair, strict=True))
    messages: list[Message] = [
        {"role": role, "content": text if rules.messages == "flat" else [{"type": "text", "text": text}]}
        for role, text in contents
    ]
    options = {"add_generation_prompt": False} | rules.chat_options
    return chat.render(messages, **options)


def _check_template(chat: Chat, rules: PairRules) -> None:
    whole, *changed = (_rendered(chat, rules, "", pair) for pair in _PROBES)
    if lost := [role for role, text in zip(("query", "document"), changed, strict=True) if text == whole]:
        raise PosexportError(
            f"the chat template of this bundle leaves out the {' and the '.join(lost)} of a pair; it must know both "
            "roles: put the template that belongs to the reranker beside it and convert again"
        )


def _suffix(tokenizer: Texts, chat: Chat, rules: PairRules, prompt: str) -> list[int]:
    """The tokens at the end of every text of the template; none where nothing differs before them."""
    first, second = tokenizer.cut_pieces(
        [_rendered(chat, rules, prompt, (filler, filler)) for filler in _FILLERS], length=None
    )
    shorter = min(len(first), len(second))
    alike = next((count for count in range(shorter) if first[-1 - count] != second[-1 - count]), shorter)
    return first[len(first) - alike :] if 0 < alike < shorter else []


def _with_suffix(ids: list[int], suffix: list[int]) -> list[int]:
    kept = suffix[-len(ids) :] if suffix else []
    return ids[: len(ids) - len(kept)] + kept
