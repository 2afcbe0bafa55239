"""``text-generation``: texts that go on, and chats that get an answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from posexport.errors import PosexportError
from posexport.run.batches import Batches
from posexport.run.pipelines.generating import (
    ChatOptions,
    Conversation,
    GeneratingPipeline,
    continued,
    stated_by,
    with_conversations,
)
from posexport.run.pipelines.text_pipeline import tokenizer_options

#: of transformers' pipeline, where neither the call nor the checkpoint says anything
DEFAULTS: dict[str, Any] = {"max_new_tokens": 256, "do_sample": True, "temperature": 0.7}
_SAMPLING = ("temperature",)


class TextGeneration(GeneratingPipeline):
    """Inputs are texts, or lists of messages."""

    shortening = "truncation=True to use its first ones"

    def grouped(self, inputs: Any, options: dict[str, Any]) -> Any:
        """A list of messages is one input."""
        return with_conversations(inputs)

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        return_full_text: bool | None = None,
        return_tensors: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        skip_special_tokens: bool | None = None,
        prefix: str | None = None,
        stop_sequence: str | Sequence[str] | None = None,
        handle_long_generation: str | None = None,
        add_special_tokens: bool | None = None,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        tokenizer_encode_kwargs: Mapping[str, Any] | None = None,
        padding: bool | str | None = None,
        **options: Any,
    ) -> list[Any]:
        """A list of ``{"generated_text"}`` for each input: the text with what comes after it, or the chat.

        Args:
            items: texts, or conversations.
            batches: of calls.
            return_full_text: False: only what was generated.
            return_tensors: ``generated_token_ids`` instead of texts, the prompt's first.
            clean_up_tokenization_spaces: no blanks before punctuation.
            skip_special_tokens: False: the text shows them.
            prefix: put before each text; the answer does not have it.
            stop_sequence: texts that end a completion, which holds them.
            handle_long_generation: ``hole``: prompts are cut on the left so that new tokens have room.
            add_special_tokens: of the tokenizer, for texts.
            truncation: True cuts prompts at the limit.
            max_length: tokens at which prompts are cut, and of prompt and completion together.
            tokenizer_encode_kwargs: of the tokenizer; where all inputs are chats, variables of the chat template too.
            padding: without effect: rows that share a call are padded.
            options: of chats (`ChatOptions`) and of `Session.generate`.
        """
        before = prefix if prefix is not None else self.files.config.get("prefix") or ""
        encode = {"truncation": truncation, "max_length": max_length, "add_special_tokens": add_special_tokens}
        encode = {name: value for name, value in encode.items() if value is not None}
        chat, encode_kwargs = ChatOptions.taken_from(options), dict(tokenizer_encode_kwargs or {})
        if all(isinstance(item, Conversation) for item in items):
            chat = chat.with_variables(encode_kwargs)
        encode.update(tokenizer_options(encode_kwargs))
        # prompts as ids, and the options of generation
        rows = [self._prompt(item, before, encode, chat, at) for at, item in enumerate(items)]
        if max_length is not None:
            options["max_length"] = max_length
        if stop_sequence is not None:
            options["stop_strings"] = stop_sequence
        options = self._completed(options, self._length(before, encode) if before else 0)
        if handle_long_generation is not None:
            rows = [self._with_room(ids, options, handle_long_generation) for ids in rows]
        # completions as ids or texts
        answers: list[list[dict[str, Any]]] = []
        for item, ids, completions in zip(items, rows, self.generated(rows, batches, options), strict=True):
            if return_tensors:
                answers.append([{"generated_token_ids": whole} for whole in self.sequences(ids, completions, options)])
                continue
            texts = [
                self.decode(
                    completion.tokens,
                    skip_special_tokens=skip_special_tokens is not False,
                    clean_up=clean_up_tokenization_spaces,
                )
                for completion in completions
            ]
            if return_full_text is not False:
                texts = [continued(item, text, chat.continue_final_message) for text in texts]
            answers.append([{"generated_text": text} for text in texts])
        return answers

    def _prompt(
        self,
        item: Any,
        prefix: str,
        encode: dict[str, Any],
        chat: ChatOptions,
        number: int,
    ) -> list[int]:
        """Returns the token ids of an input."""
        if isinstance(item, Conversation):
            prompt = chat.prompt(self.session.render_chat, item)
            # a chat is cut only where truncation is asked for
            cut = encode if encode.get("truncation") else {}
            return list(self.encoded([prompt], **{**cut, "add_special_tokens": False})[0].ids)
        if not isinstance(item, str):
            raise PosexportError(
                f"input {number} must be a text, or a list of messages, each with a role and content, got {item!r:.60}"
            )
        (encoding,) = self.encoded([prefix + item], **encode)
        return list(encoding.ids)

    def _completed(self, options: dict[str, Any], prefix_length: int) -> dict[str, Any]:
        """The options of the call, and the pipeline's where the checkpoint says nothing either."""
        config = options.get("generation_config")
        configured = {} if config is None else stated_by(config)
        stated = {**self.stated, **configured, **{name: value for name, value in options.items() if value is not None}}
        added = {
            name: value
            for name, value in DEFAULTS.items()
            if name not in stated and not (name == "max_new_tokens" and "max_length" in stated)
        }
        if not {**stated, **added}.get("do_sample"):
            added = {name: value for name, value in added.items() if name not in _SAMPLING}
        lengths = {}
        for length, new_tokens in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
            # a total has to include the prefix
            if prefix_length and length in stated and new_tokens not in {**stated, **added}:
                lengths[length] = stated[length] + prefix_length
        return {**options, **added, **lengths}

    def _length(self, prefix: str, encode: Mapping[str, Any]) -> int:
        special = bool(encode.get("add_special_tokens", False))
        return len(self.encoded([prefix], add_special_tokens=special)[0].ids)

    def _with_room(self, ids: list[int], options: dict[str, Any], how: str) -> list[int]:
        if how != "hole":
            raise PosexportError(f"handle_long_generation must be None or 'hole', got {how!r}")
        new = options.get("max_new_tokens")
        if new is None:
            new = options.get("max_length", self.stated.get("max_length", 0)) - len(ids)
        limit = self.cut_at(None)
        if limit is None or len(ids) + new <= limit:
            return ids
        if limit - new <= 0:
            raise PosexportError(f"{new} new tokens leave no room for a prompt in {limit} tokens; ask for fewer")
        return ids[-(limit - new) :]
