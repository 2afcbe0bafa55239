"""Implements ``posexport generate``: opens a bundle, continues texts, formats the result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from posexport.base.options.prompts import PromptOptions
from posexport.base.options.run import Opening
from posexport.run.arrays import read_arrays
from posexport.run.chat import Message
from posexport.run.generate.config import GenerationConfig
from posexport.run.generate.file import described
from posexport.run.generate.result import Generation
from posexport.run.load import load


@dataclass(frozen=True)
class Continued:
    """Completions of one run; ``prompts`` has one entry per completion."""

    directory: Path
    providers: list[str]
    prompts: list[str]
    generation: Generation
    limit: int | None

    def to_json(self) -> str:
        """One JSON document; the rates are tokens per second."""
        generation = self.generation
        document = {
            "bundle": str(self.directory),
            "providers": self.providers,
            "completions": [
                {"prompt": prompt, "text": one.text, "tokens": one.tokens, "finish": one.finish}
                | ({} if one.score is None else {"score": one.score})
                for prompt, one in zip(self.prompts, generation.completions, strict=True)
            ],
            **({"followed": generation.followed} if generation.followed else {}),
            "speed": {
                "prompt_tokens": generation.prompt_tokens,
                "prompt_seconds": generation.prompt_seconds,
                "prompt_tokens_per_second": generation.prompt_rate,
                "decode_tokens": generation.step_tokens,
                "decode_seconds": generation.step_seconds,
                "decode_tokens_per_second": generation.rate,
            },
        }
        return msgspec.json.encode(document).decode()

    def to_text(self) -> str:
        """The text of the completion, or its token ids; several completions each follow their prompt."""
        texts = [
            " ".join(map(str, completion.tokens)) if completion.text is None else completion.text
            for completion in self.generation.completions
        ]
        if len(texts) == 1:
            return texts[0]
        return "\n\n".join(f"{heading(prompt)}\n{text}" for prompt, text in zip(self.prompts, texts, strict=True))

    def remarks(self) -> list[str]:
        """Options from the configuration, speed, and the completions that ended at the length limit."""
        generation = self.generation
        speed = f"prompt: {generation.prompt_tokens} tokens ({generation.prompt_rate:.0f} tok/s)"
        if generation.step_tokens:
            speed += f"; generation: {generation.step_tokens} tokens ({generation.rate:.0f} tok/s)"
        pairs = zip(self.prompts, generation.completions, strict=True)
        ended = [prompt for prompt, completion in pairs if completion.finish == "limit"]
        said = [described(generation.followed)] if generation.followed else []
        return [
            *said,
            speed,
            *(f"{heading(prompt)} ends early: it takes at most {self.limit} tokens" for prompt in ended),
        ]


def heading(prompt: str) -> str:
    """Heading of a prompt in the output of several."""
    return f"--- {' '.join(prompt.split())}"


class SequentialStreamer:
    """Streams several texts one after the other: pieces of later texts wait until the earlier texts end."""

    def __init__(self, prompts: Sequence[str], tell: Callable[[str], None]) -> None:
        self._waiting = [""] * len(prompts)
        self._prompts, self._tell = prompts, tell
        self._now = -1

    def __call__(self, index: int, piece: str | int) -> None:
        """Add a piece of the text with this index; an id, of a bundle without a tokenizer, and a space."""
        self._waiting[index] += piece if isinstance(piece, str) else f"{piece} "
        self._begin(0)
        if index == self._now:
            self._flush()

    def finish(self) -> None:
        for index in range(len(self._prompts)):
            self._begin(index)
        self._tell("\n")

    def _begin(self, index: int) -> None:
        """Print the heading and the waiting pieces of a text, if all texts before it were begun."""
        if index != self._now + 1:
            return
        self._now = index
        if len(self._prompts) > 1:
            self._tell("\n\n" * (index > 0) + f"{heading(self._prompts[index])}\n")
        self._flush()

    def _flush(self) -> None:
        if self._waiting[self._now]:
            self._tell(self._waiting[self._now])
        self._waiting[self._now] = ""


def continue_texts(
    directory: Path,
    options: PromptOptions,
    config: GenerationConfig,
    opening: Opening,
    tell: Callable[[str], None] | None = None,
) -> Continued:
    """Continue prompts with the bundle in ``directory``.

    Args:
        options: the prompts; the result names rows of arrays by their numbers.
        tell: called with each piece of text, prompt by prompt.

    Raises:
        PosexportError: `load` or `Session.generate` rejects the arguments.
    """
    options.check()
    arrays = None if options.inputs is None else read_arrays(Path(options.inputs))
    session = load(directory, **opening.opening)
    prompts = list(options.prompts) if arrays is None else _names(arrays)
    pieces = None if tell is None else SequentialStreamer(prompts, tell)
    # generate, and stream the texts in the order of the prompts
    generation = session.generate(
        (_chats(options) if options.chat else prompts) if arrays is None else arrays,
        config,
        images=[list(options.images)] * len(prompts) if options.images else None,
        decoder_prompts=options.decoder_prompts or None,
        streamer=pieces,
        chat_template_kwargs=options.chat_options,
        adapter=options.adapter,
    )
    if pieces is not None:
        pieces.finish()
    # several completions per prompt repeat the prompt
    times = len(generation.completions) // len(prompts)
    repeated = [prompt for prompt in prompts for _ in range(times)]
    return Continued(directory, session.providers, repeated, generation, session.manifest.limits.max_length)


def _names(arrays: Mapping[str, Any]) -> list[str]:
    """What to call the rows of arrays."""
    lengths = [len(array) if isinstance(array, list) else len(np.atleast_1d(array)) for array in arrays.values()]
    return [f"row {index}" for index in range(max(lengths, default=0))]


def _chats(options: PromptOptions) -> list[list[Message]]:
    """A chat for each prompt: the system message, and the user's with the pictures before the text."""
    before: list[Message] = [] if options.system is None else [{"role": "system", "content": options.system}]
    pictures = [{"type": "image"} for _ in options.images]
    return [
        [*before, {"role": "user", "content": [*pictures, {"type": "text", "text": text}] if pictures else text}]
        for text in options.prompts
    ]
