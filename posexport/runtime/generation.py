"""What `posexport.Session.generate` returns, and the rules that it follows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits.processor import Setting

Finish = Literal["stop", "length", "limit"]
#: a row, and new text of it
Piece = tuple[int, str]
Streamer = Callable[[int, str], None]
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What came after one prompt. ``text``: None without a tokenizer.

    ``finish``: ``stop`` (a stop token, which is not among ``tokens``, or a stop text, which is not in ``text``),
    ``length`` (the most tokens that were requested) or ``limit`` (the model takes no more). ``score``: of beam search,
    the sum of the tokens' log-probabilities divided by a power of their number (``sequences_scores`` of transformers).
    """

    prompt_tokens: list[int]
    tokens: list[int]
    text: str | None
    finish: Finish
    score: float | None = None


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The completions of every prompt, and how long they took.

    With ``num_return_sequences`` the completions of one prompt follow each other. The prompt's time ends with the
    logits after it; ``step_tokens`` are the tokens of the steps after that. ``followed``: the options that the
    bundle's ``generation_config.json`` decided.
    """

    completions: list[Completion]
    prompt_tokens: int
    prompt_seconds: float
    step_tokens: int
    step_seconds: float
    followed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt_rate(self) -> float:
        """Tokens of prompts read in a second, padding not counted."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def rate(self) -> float:
        """Tokens made in a second after the prompts were read, of all rows."""
        return self.step_tokens / self.step_seconds if self.step_seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class GenerationRules:
    """A `GenerationConfig` for one bundle: stop tokens and texts apart, and what logits processors know."""

    config: GenerationConfig = field(default_factory=GenerationConfig)
    stop_tokens: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()
    setting: Setting = field(default_factory=Setting)
