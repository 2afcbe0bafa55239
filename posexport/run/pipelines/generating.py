"""Base of the tasks that generate: options of the pipeline, of the checkpoint's files and of the call."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

import msgspec

from posexport.errors import PosexportError
from posexport.run.batches import Batches
from posexport.run.chat import Message
from posexport.run.generate.config import GenerationConfig
from posexport.run.pipelines.pipeline import ModelFiles
from posexport.run.pipelines.text_pipeline import TOKENIZER_OPTIONS, TextPipeline

#: appended to the last message; text after it in the prompt comes from the template and is cut
_MARK = "POSEXPORT_CONTINUES_HERE "
Render = Callable[..., str]


class Conversation(tuple[Message, ...]):
    """Messages that are one input, as lists of inputs are lists."""

    __slots__ = ()


def is_message(value: object) -> bool:
    """Whether it is a message of a chat."""
    return isinstance(value, dict) and "role" in value and "content" in value


def with_conversations(inputs: Any) -> Any:
    """``inputs``, in which a list of messages, alone, in a list or from an iterator, is a `Conversation`."""
    if isinstance(inputs, Iterator):
        return _lazily(inputs)
    if not isinstance(inputs, list | tuple) or isinstance(inputs, Conversation) or not inputs:
        return inputs
    if is_message(inputs[0]):
        return _conversation(inputs)
    return [_conversation(chat) if _is_chat(chat) else chat for chat in inputs]


def _lazily(inputs: Iterator[Any]) -> Any:
    first = next(inputs, None)
    if first is None:
        return []
    inputs = chain([first], inputs)
    if is_message(first):
        return _conversation(list(inputs))
    return (_conversation(chat) if _is_chat(chat) else chat for chat in inputs)


def _is_chat(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and is_message(value[0])


def _conversation(messages: Sequence[Any]) -> Conversation:
    for number, message in enumerate(messages):
        if not is_message(message):
            raise PosexportError(f"message {number} must have a role and content, got {message!r:.60}")
    return Conversation(messages)


def continuing(render: Render, messages: Sequence[Message], **options: Any) -> str:
    """The prompt of messages that ends with the last one's content, for the model to continue it.

    ``render``: `Session.render_chat`. Raises PosexportError for a template that leaves the last message out.
    """
    *before, last = messages
    content = last["content"] if isinstance(last["content"], str) else _last_text(last["content"])
    marked = {**last, "content": with_text(last["content"], _MARK)}
    prompt = render([*before, marked], **{**options, "add_generation_prompt": False})
    if _MARK.strip() not in prompt or content.strip() not in prompt:
        raise PosexportError(
            "the chat template does not show the last message as it is, so it cannot be continued; give "
            "continue_final_message=False"
        )
    place = prompt.rindex(_MARK.strip())
    prefix = prompt[:place]
    # a template that trims messages trims the content too
    return prefix if prompt[place : place + len(_MARK)] == _MARK else prefix.rstrip()


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a pipeline for chats.

    Attributes:
        continue_final_message: the last message is continued; None: where it is the assistant's.
        tools: functions or JSON schemas, passed to the chat template.
        documents: passed to the chat template.
        chat_template_kwargs: variables of the template, such as ``enable_thinking``.
    """

    continue_final_message: bool | None = None
    tools: Sequence[Any] | None = None
    documents: Sequence[Any] | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> "ChatOptions":
        """The options among those of a call, which lose them."""
        return cls(**{name: options.pop(name) for name in cls.__struct_fields__ if name in options})

    def with_variables(self, encode_kwargs: dict[str, Any]) -> "ChatOptions":
        """The options with the template's variables in transformers' ``tokenizer_encode_kwargs``, which loses them."""
        names = [name for name in encode_kwargs if name not in TOKENIZER_OPTIONS]
        variables = {name: encode_kwargs.pop(name) for name in names}
        return msgspec.structs.replace(self, chat_template_kwargs={**variables, **(self.chat_template_kwargs or {})})

    def prompt(self, render: Render, messages: Sequence[Message]) -> str:
        """The prompt of messages. ``render``: `Session.render_chat`."""
        variables = {"tools": self.tools, "documents": self.documents, **(self.chat_template_kwargs or {})}
        if is_continued(messages, self.continue_final_message):
            return continuing(render, messages, **variables)
        return render(list(messages), **variables)


def is_continued(messages: Sequence[Message], option: bool | None) -> bool:
    """Whether the last message is continued: by the option; None: where it is the assistant's."""
    return bool(messages[-1]["role"] == "assistant") if option is None else option


def continued(item: Any, text: str, option: bool | None) -> Any:
    """A text or the messages of a chat, with what was generated; ``option``: as of `is_continued`."""
    if isinstance(item, str):
        return item + text
    if is_continued(item, option):
        return [*item[:-1], {"role": item[-1]["role"], "content": with_text(item[-1]["content"], text)}]
    return [*item, {"role": "assistant", "content": text}]


def with_text(content: Any, text: str) -> Any:
    """The content of a message with ``text`` at its end."""
    if isinstance(content, str):
        return content + text
    return [*content[:-1], {**content[-1], "text": _last_text(content) + text}]


def _last_text(content: Any) -> str:
    text = content[-1].get("text") if isinstance(content, list | tuple) and content else None
    if not isinstance(text, str):
        raise PosexportError("the last message, which is to be continued, must be a text")
    return text


TokenId = Callable[[str], int | None]
#: by the beginning of the tokenizer's class: whether the code comes before the text, and how codes are written
_RULES: tuple[tuple[str, bool, str], ...] = (
    ("MBart50", True, "{}"),
    ("MBart", False, "{}"),
    ("M2M100", True, "__{}__"),
    ("Nllb", True, "{}"),
)


def source_tokens(
    files: ModelFiles, token_id: TokenId, source: str | None, target: str | None
) -> tuple[list[int], list[int]] | None:
    """The ids before and after a text in the language ``source``; None: the tokenizer has no languages.

    Raises PosexportError for a multilingual tokenizer without both languages, or with unknown ones.
    """
    rule = _rule(files)
    if rule is None:
        return None
    if source is None or target is None:
        raise PosexportError("this model translates many languages; give src_lang and tgt_lang, such as 'en_XX'")
    before, spelling = rule
    code = _id(token_id, spelling.format(source), "src_lang", source)
    end = _id(token_id, files.special_token("eos_token") or "</s>", "eos_token", "</s>")
    return ([code], [end]) if before else ([], [end, code])


def target_token(files: ModelFiles, token_id: TokenId, target: str) -> int:
    """The first token of a translation into ``target``."""
    rule = _rule(files)
    assert rule is not None
    return _id(token_id, rule[1].format(target), "tgt_lang", target)


def _rule(files: ModelFiles) -> tuple[bool, str] | None:
    name = str(files.tokenizer_config.get("tokenizer_class", ""))
    for beginning, before, spelling in _RULES:
        if name.startswith(beginning):
            legacy = beginning == "Nllb" and bool(files.tokenizer_config.get("legacy_behaviour"))
            return before and not legacy, spelling
    return None


def _id(token_id: TokenId, token: str, option: str, value: str) -> int:
    number = token_id(token)
    if number is None:
        raise PosexportError(f"the tokenizer has no token {token} for {option}={value!r}; give one of its codes")
    return number


#: options of transformers' ``generate`` that change no text here: completions have no padding, the cache is used
_WITHOUT_EFFECT = ("pad_token_id", "use_cache")

#: what ``max_length`` is in transformers 4 where nobody says it
_UNSAID = 20
#: options with a default in a pipeline, and the options that this default depends on
_DEFAULTED = ("max_new_tokens", "max_length", "min_new_tokens", "min_length", "do_sample", "temperature", "num_beams")


class GeneratingPipeline(TextPipeline):
    """Base class of the tasks that call `Session.generate`."""

    def generated(self, rows: Sequence[Sequence[int]], batches: Batches, options: Mapping[str, Any]) -> list[list[Any]]:
        """The completions of each row of token ids, in calls of rows of about the same length."""
        stated = {name: value for name, value in options.items() if name not in _WITHOUT_EFFECT}
        config = stated.pop("generation_config", None)
        if config is not None and not isinstance(config, GenerationConfig):
            stated = {**stated_by(config), **stated}
            config = None
        by_row: list[list[Any]] = [[] for _ in rows]
        for chosen in batches.places([len(prompt) for prompt in rows]):
            done = self.session.generate([list(rows[place]) for place in chosen], config, **stated).completions
            count = len(done) // len(chosen)
            for number, place in enumerate(chosen):
                by_row[place] = done[number * count : (number + 1) * count]
        return by_row

    @property
    def stated(self) -> dict[str, Any]:
        """Of `_DEFAULTED`, what generation_config.json says, and where there is none config.json."""
        document = self.files.json("generation_config.json") or self.files.config
        return {name: document[name] for name in _DEFAULTED if document.get(name) is not None}

    def stated_token(self, *names: str) -> int | None:
        """The token id that the checkpoint's files name first."""
        for name in names:
            for document in (self.files.json("generation_config.json"), self.files.config):
                token = document.get(name)
                first = token[0] if isinstance(token, list) and token else token
                if isinstance(first, int):
                    return first
        return None

    def resolved(
        self, options: Mapping[str, Any], defaults: Mapping[str, Any], of_task: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any]:
        """Merges options of the call, the pipeline, the task and the checkpoint in transformers' order of priority.

        The pipeline's ``defaults``, such as 256 new tokens, go before what generation_config.json says of the same;
        a ``max_length`` of that file takes the place of new tokens.
        """
        at_start = {name: value for name, value in self._options.items() if options.get(name) == value}
        call = {name: value for name, value in options.items() if name not in at_start}
        length = at_start.get("max_length", self.stated.get("max_length"))
        chosen = {**defaults, **at_start}
        if length not in (None, _UNSAID) and chosen["max_new_tokens"] == defaults["max_new_tokens"]:
            del chosen["max_new_tokens"]
        chosen |= {**of_task, **call}
        for new_tokens, total in (("max_new_tokens", "max_length"), ("min_new_tokens", "min_length")):
            if chosen.get(new_tokens) is not None:
                chosen.pop(total, None)
        return chosen

    def sequences(
        self, begun: Sequence[int], completions: Sequence[Any], options: Mapping[str, Any]
    ) -> list[list[int]]:
        """Token ids of the prompt and each completion, with the end token, padded to the longest."""
        stop_token = options.get("eos_token_id")
        end = stop_token if isinstance(stop_token, int) else self.stated_token("eos_token_id")
        sequences = []
        for completion in completions:
            ended = [end] if completion.finish == "stop" and end is not None else []
            sequences.append([*begun, *completion.tokens, *ended])
        longest, padding = max(map(len, sequences)), self.special_id("pad_token")
        filler = end if padding is None else padding
        return [[*ids, *[filler or 0] * (longest - len(ids))] for ids in sequences]


def stated_by(config: Any) -> dict[str, Any]:
    """The options that a generation config sets: posexport's, transformers', or a dictionary."""
    if isinstance(config, GenerationConfig):
        stated = {name: getattr(config, name) for name in GenerationConfig.__annotations__}
    else:
        stated = dict(config) if isinstance(config, Mapping) else dict(config.to_diff_dict())
    return {name: value for name, value in stated.items() if name != "transformers_version" and value is not None}
