"""``image-text-to-text``: answers about pictures, in texts with image tokens or in chats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posexport.errors import PosexportError
from posexport.run.batches import Batches
from posexport.run.chat import Chat
from posexport.run.generate.result import Completion
from posexport.run.pictures_in_prompts import RenderedChat, pictures_in
from posexport.run.pipelines.generating import (
    ChatOptions,
    Conversation,
    GeneratingPipeline,
    continued,
    is_message,
    with_conversations,
)
from posexport.run.pipelines.images import opened_picture
from posexport.run.pipelines.pipeline import as_inputs

#: of transformers' pipeline
DEFAULTS: dict[str, Any] = {"max_new_tokens": 256}
#: how far the text of the prompt may be from the start of a sequence, in characters, as in transformers
_FROM_START = 2


@dataclass(frozen=True)
class _Prompt:
    """A text or a conversation as the answer shows it, its text for the model, and its pictures."""

    shown: Any
    text: str
    pictures: list[Any]


class ImageTextToText(GeneratingPipeline):
    """Inputs are pictures with a text, texts, or lists of messages with ``{"type": "image", "image": picture}``."""

    def setup(self) -> None:
        super().setup()
        rules = self.session.manifest.picture_rules
        if rules is None or not rules.image_token:
            raise PosexportError(
                f"{self.session.directory} has no tokenizer that knows pictures; use Session.generate with prompts as "
                "lists of ids"
            )
        self.image_token = rules.image_token

    def __call__(  # type: ignore[override]  # transformers' names and order
        self, images: Any = None, text: Any = None, *, batch_size: int | None = None, **options: Any
    ) -> Any:
        """``[{"input_text", "generated_text"}]`` of each input.

        Args:
            images: a picture or a list, or what has the texts in it: chats, or dictionaries with images and text.
            text: a text or a list, with an image token for each picture in turn; or chats.
            batch_size: inputs of one call of the model; default: one.
            options: of `answers`.
        """
        if images is None and text is None:
            raise PosexportError("give text, with images or in messages that hold them")
        if text is None or images is None:
            inputs = images if text is None else text
            if text is None and not _holds_texts(images):
                raise PosexportError(f"give text, with {self.image_token} for each picture")
        elif isinstance(text, list | tuple) and text and not isinstance(text[0], str):
            raise PosexportError('pictures of chats are in their messages: {"type": "image", "image": picture}')
        else:
            inputs = {"images": images, "text": text}
        return super().__call__(inputs, batch_size=batch_size, **options)

    def about(self, pictures: Sequence[Any], text: str, **options: Any) -> Any:
        """The answer to a text about pictures: a text with image tokens as it is, any other as a user's message."""
        if not pictures:
            return self(text=text, **options)
        if self.image_token in text:
            return self(pictures, text, **options)
        try:
            Chat(self.session.directory, self.session.manifest)
        except PosexportError as err:
            raise PosexportError(f"{err}; in a text, write {self.image_token} where each picture stands") from err
        content = [*({"type": "image", "image": each} for each in pictures), {"type": "text", "text": text}]
        return self(text=[{"role": "user", "content": content}], **options)

    def grouped(self, inputs: Any, options: dict[str, Any]) -> Any:
        """A list of messages is one input."""
        return with_conversations(inputs)

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        max_new_tokens: int | None = None,
        generate_kwargs: Mapping[str, Any] | None = None,
        return_full_text: bool | None = None,
        return_tensors: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        stop_sequence: str | Sequence[str] | None = None,
        skip_special_tokens: bool | None = None,
        **options: Any,
    ) -> list[Any]:
        """``[{"input_text", "generated_text"}]`` of each input: the text with what comes after it, or the chat.

        Args:
            items: texts, dictionaries with ``images`` and ``text``, or conversations.
            batches: of calls; by default an input alone, as in transformers.
            max_new_tokens: of each text.
            generate_kwargs: options of `Session.generate`: ``num_beams`` and others.
            return_full_text: False: only what was generated.
            return_tensors: ``generated_token_ids`` instead of texts, the prompt's first.
            clean_up_tokenization_spaces: no blanks before punctuation.
            stop_sequence: texts that end a completion, which holds them.
            skip_special_tokens: False: the text shows them.
            options: of chats (`ChatOptions`), and as ``generate_kwargs``.
        """
        chat = ChatOptions.taken_from(options)
        stated = {**(generate_kwargs or {}), **options}
        if max_new_tokens is not None:
            if "max_new_tokens" in (generate_kwargs or {}):
                raise PosexportError("max_new_tokens stands in the call and in generate_kwargs; give it once")
            stated["max_new_tokens"] = max_new_tokens
        if stop_sequence is not None:
            stated["stop_strings"] = stop_sequence
        if return_tensors and return_full_text is not None:
            raise PosexportError("return_tensors gives the ids of all; leave return_full_text out")
        chosen, size = self.resolved(stated, DEFAULTS), batches.batch_size or 1
        shows = {"skip_special_tokens": skip_special_tokens is not False, "clean_up": clean_up_tokenization_spaces}

        def record(prompt: _Prompt, completion: Completion) -> dict[str, Any]:
            shown = list(prompt.shown) if isinstance(prompt.shown, Conversation) else prompt.shown
            (ids,) = self.sequences(completion.prompt_tokens, [completion], chosen)
            if return_tensors:
                return {"input_text": shown, "generated_token_ids": ids}
            text = self._new_text(completion.prompt_tokens, ids, shows)
            whole = text if return_full_text is False else continued(prompt.shown, text, chat.continue_final_message)
            return {"input_text": shown, "generated_text": whole}

        answers: list[Any] = []
        for start in range(0, len(items), size):
            numbered = enumerate(items[start : start + size], start)
            asked = [self._prompts(item, chat, number) for number, item in numbered]
            prompts = [prompt for part in asked for prompt in part]
            images = [prompt.pictures for prompt in prompts]
            done = self.session.generate([prompt.text for prompt in prompts], images=images, **chosen).completions
            times, completed = len(done) // len(prompts), iter(done)
            answers += [[record(prompt, next(completed)) for prompt in part for _ in range(times)] for part in asked]
        return answers

    def _prompts(self, item: Any, chat: ChatOptions, number: int) -> list[_Prompt]:
        """The prompts of an input: one, or one for each text of a list."""
        if isinstance(item, Conversation):
            text = chat.prompt(self.session.render_chat, item)
            return [_Prompt(item, RenderedChat(text), [opened_picture(picture) for picture in pictures_in(item)])]
        images, asked = (item.get("images"), item.get("text")) if isinstance(item, Mapping) else (None, item)
        texts = [asked] if isinstance(asked, str) else asked
        if not isinstance(texts, list | tuple) or not texts or not all(isinstance(each, str) for each in texts):
            raise PosexportError(
                f"input {number} must be a text, messages, or a dictionary with images and text, got {item!r:.60}"
            )
        pictures = [] if images is None else [opened_picture(picture) for picture in _flat(images)]
        counts = [each.count(self.image_token) for each in texts]
        if sum(counts) != len(pictures):
            raise PosexportError(
                f"input {number} has {self.image_token} {sum(counts)} times and {len(pictures)} pictures; write it "
                "once where each picture stands"
            )
        taken = iter(pictures)
        return [
            _Prompt(each, each, [next(taken) for _ in range(count)]) for each, count in zip(texts, counts, strict=True)
        ]

    def _new_text(self, prompt: Sequence[int], ids: Sequence[int], shows: Mapping[str, Any]) -> str:
        """The text of ``ids`` without the prompt's. ``shows``: options of `decode`."""
        text, begun = self.decode(ids, **shows), self.decode(prompt, **shows)
        at = text.find(begun)
        return text[at + len(begun) :] if 0 <= at <= _FROM_START else text


def _flat(images: Any) -> list[Any]:
    listed = as_inputs(images)
    return [picture for each in listed for picture in _flat(each)] if isinstance(listed, list) else [images]


def _holds_texts(inputs: Any) -> bool:
    """Whether ``inputs`` are chats, or dictionaries with texts, or an iterator of these."""
    if isinstance(inputs, list | tuple):
        return bool(inputs) and (is_message(inputs[0]) or _holds_texts(inputs[0]))
    return isinstance(inputs, Mapping) or hasattr(inputs, "__next__")
