"""A chat that keeps its KV cache, so that every turn computes its new tokens only."""

from collections.abc import Mapping, Sequence
from typing import Any

from posexport.run.chat import Message
from posexport.run.generate.config import GenerationConfig
from posexport.run.generate.loop import drain
from posexport.run.generate.result import Completion, Generation, Streamer
from posexport.run.generate.session import Continuation, Keeper
from posexport.run.requests import GenerationInputs


class Conversation:
    """Made by `posexport.Session.chat`. Its calls must not overlap; other calls of the session may.

    Attributes:
        messages: the messages so far, which may be changed between turns: what differs is computed again.
    """

    def __init__(
        self,
        continuation: Continuation,
        config: GenerationConfig,
        messages: Sequence[Message],
        chat_template_kwargs: Mapping[str, Any] | None,
        adapter: str | None = None,
    ) -> None:
        self.messages: list[Message] = list(messages)
        self._continuation, self._config = continuation, config
        self._variables, self._adapter = chat_template_kwargs, adapter
        self._keeper = Keeper()

    @property
    def computed_tokens(self) -> int:
        """The tokens that the model has read in all turns, of prompts and completions."""
        return self._keeper.computed

    def send(self, message: str | Message, *, streamer: Streamer | None = None, **options: Any) -> Completion:
        """The answer to a message, a text of the user or one with a role; both are added to `messages`.

        Args:
            message: a text, or a message for the chat template.
            streamer: see `posexport.Session.generate`.
            options: of this turn, by the names of `posexport.GenerationConfig`.

        Raises:
            PosexportError: see `generate`; then `messages` are as before.
        """
        added: Message = {"role": "user", "content": message} if isinstance(message, str) else message
        messages = [*self.messages, added]
        (completion,) = self.generate(messages, streamer=streamer, **options).completions
        self.messages = [*messages, {"role": "assistant", "content": completion.text or ""}]
        return completion

    def generate(
        self, prompt: str | Sequence[int] | Sequence[Message], *, streamer: Streamer | None = None, **options: Any
    ) -> Generation:
        """Continue a prompt as `posexport.Session.generate` does; the tokens that it shares with the last are kept.

        Raises:
            PosexportError: errors of `posexport.Session.generate`; beams, several sequences, pictures, and models with
                an encoder.
        """
        chat = not isinstance(prompt, str) and any(isinstance(turn, Mapping) for turn in prompt)
        inputs = GenerationInputs.of([prompt], None, None, self._variables if chat else None, self._adapter)
        config = self._config.changed(options)
        events = self._continuation.events(inputs, config, streams=streamer is not None, keeper=self._keeper)
        return drain(events, streamer)
