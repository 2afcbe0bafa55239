"""Pairs of texts as chat messages of the roles ``query`` and ``document``, for rerankers with a chat template.

A text over the limit is truncated at its end, and the template's last tokens, after which the model predicts, replace
the end that remains (``Transformer._restore_chat_template_suffix`` of sentence-transformers 6).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from posexport.errors import PosexportError
from posexport.runtime.chat import Chat, Message
from posexport.runtime.texts import Texts, check_texts
from posexport.spec import PairRules

#: two contents that end in different tokens: tokens that both rendered texts end with are the template's
_FILLERS = ("0", "1 2 3 4")
#: a pair, the pair with another query, and the pair with another document
_PROBES = (("alpha", "bravo"), ("charlie", "bravo"), ("alpha", "foxtrot"))


@dataclass(frozen=True)
class TokenRow:
    """Token ids of one text with the further inputs of the graph."""

    ids: list[int]

    @property
    def type_ids(self) -> list[int]:
        return [0] * len(self.ids)

    @property
    def attention_mask(self) -> list[int]:
        return [1] * len(self.ids)


def message_rows(
    pairs: Sequence[tuple[str, str]], tokenizer: Texts, chat: Chat, rules: PairRules, prompt: str
) -> list[TokenRow]:
    """Tokenizes pairs in the chat template, with ``prompt`` as the system message, truncated by the rules.

    Raises PosexportError for a template that leaves out the query or the document.
    """
    for column in zip(*pairs, strict=True):
        check_texts(column, "text")
    _check_template(chat, rules)
    rendered = [_rendered(chat, rules, prompt, pair) for pair in pairs]
    rows = tokenizer.cut_pieces(rendered, rules.max_length)
    if rules.suffix_kept and any(len(ids) == rules.max_length for ids in rows):
        suffix = _suffix(tokenizer, chat, rules, prompt)
        rows = [_with_suffix(ids, suffix) if len(ids) == rules.max_length else ids for ids in rows]
    return [TokenRow(ids) for ids in rows]


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
            "roles: add the chat template of the reranker to the checkpoint and convert again"
        )


def _suffix(tokenizer: Texts, chat: Chat, rules: PairRules, prompt: str) -> list[int]:
    """The last tokens of the template, after both contents; empty if the template adds no content."""
    first, second = tokenizer.cut_pieces(
        [_rendered(chat, rules, prompt, (filler, filler)) for filler in _FILLERS], length=None
    )
    shorter = min(len(first), len(second))
    common = next((count for count in range(shorter) if first[-1 - count] != second[-1 - count]), shorter)
    return first[len(first) - common :] if 0 < common < shorter else []


def _with_suffix(ids: list[int], suffix: list[int]) -> list[int]:
    end = suffix[-len(ids) :] if suffix else []
    return ids[: len(ids) - len(end)] + end
