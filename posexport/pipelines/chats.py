"""Lists of messages among inputs, and the prompt that continues a last message of the assistant."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from posexport.errors import PosexportError
from posexport.runtime.chat import Message

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
    content = last["content"]
    if not isinstance(content, str):
        raise PosexportError("the last message, which is to be continued, must be a text")
    marked = {**last, "content": content + _MARK}
    prompt = render([*before, marked], add_generation_prompt=False, **options)
    if _MARK.strip() not in prompt or content.strip() not in prompt:
        raise PosexportError(
            "the chat template does not show the last message as it is, so it cannot be continued; give "
            "continue_final_message=False"
        )
    place = prompt.rindex(_MARK.strip())
    prefix = prompt[:place]
    # a template that trims messages trims the content too
    return prefix if prompt[place : place + len(_MARK)] == _MARK else prefix.rstrip()
