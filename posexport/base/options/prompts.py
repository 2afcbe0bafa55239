"""The record of prompts of ``posexport generate``: texts, messages of a chat, or arrays."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Annotated, Any

import msgspec

from posexport.base.options.option import Option
from posexport.errors import PosexportError

#: the heading in ``--help``
PROMPTS = "Prompts"


class PromptOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts of one call, and how they are read."""

    prompts: Annotated[
        Sequence[str],
        Option(group=PROMPTS, flag="prompt", help="A text to continue, or the encoder's input (repeatable)."),
    ] = ()
    inputs: Annotated[
        PathLike[str] | None,
        Option(
            group=PROMPTS,
            help="Ids, or arrays for an encoder, by input name, instead of prompts: .npz, .safetensors or .json.",
        ),
    ] = None
    decoder_prompts: Annotated[
        Sequence[str],
        Option(
            group=PROMPTS,
            flag="decoder-prompt",
            help="The decoder's first tokens, as text, for an encoder-decoder (repeatable: one for each prompt).",
        ),
    ] = ()
    images: Annotated[
        Sequence[PathLike[str]],
        Option(
            group=PROMPTS,
            flag="image",
            help="A picture that each prompt is about (repeatable): with --chat, else at its image tokens.",
        ),
    ] = ()
    adapters: Annotated[
        Sequence[str],
        Option(
            group=PROMPTS,
            flag="adapter",
            metavar="NAME",
            help="The LoRA adapter of all prompts, or of each in turn (repeatable); none: the base model.",
        ),
    ] = ()
    chat: Annotated[
        bool, Option(group=PROMPTS, help="Put each prompt into the model's chat template as a user message.")
    ] = False
    system: Annotated[
        str | None, Option(group=PROMPTS, metavar="TEXT", help="A system message before each prompt, with --chat.")
    ] = None
    chat_options: Annotated[
        Mapping[str, Any] | None,
        Option(
            group=PROMPTS,
            flag="chat-option",
            metavar="KEY=VALUE",
            json=True,
            help="Of the chat template, with --chat, e.g. enable_thinking=false (repeatable); values may be JSON.",
        ),
    ] = None

    @property
    def adapter(self) -> str | list[str] | None:
        """The argument of `Session.generate`: a name, or one for each prompt."""
        return None if not self.adapters else self.adapters[0] if len(self.adapters) == 1 else list(self.adapters)

    def check(self) -> None:
        """Raise PosexportError for options that exclude each other."""
        if bool(self.prompts) == (self.inputs is not None):
            raise PosexportError(f"give --prompt or --inputs, {'not both' if self.prompts else 'at least one of them'}")
        if (self.chat and self.inputs is not None) or (self.system is not None and not self.chat):
            raise PosexportError("--chat is about --prompt, and --system about --chat; leave the other out")
        if self.chat_options and not self.chat:
            raise PosexportError("--chat-option is about --chat; leave it out, or give --chat")
