"""How `posexport.Session.generate` continues prompts: one record, with transformers' names for what both have."""

import dataclasses
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from posexport.errors import PosexportError
from posexport.options.suggest import did_you_mean
from posexport.runtime.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Options of generation.

    Attributes:
        max_new_tokens: stop after so many.
        do_sample: draw tokens; False takes the likeliest each time. None: draw where ``temperature``, ``top_k`` or
            ``top_p`` is given.
        temperature: logits are divided by it before tokens are drawn; 0 takes the likeliest token each time.
        top_k: draw among so many of the likeliest tokens; 0 for all.
        top_p: draw among the fewest tokens that together have this probability.
        seed: of drawing: the same for the same seed, prompt and options, whatever other prompts are in the batch.
        stop_strings: texts that end a completion, which does not hold them.
        eos_token_id: tokens that end a completion; None: those of the bundle's configuration, ``()``: none.
        prefill_chunk_size: read prompts so many tokens at a time, which takes less memory.
        recompute: read a row again from its start where it outgrows the length up to which its cached keys hold
            (LongRoPE); False refuses such prompts.

    Examples:
        >>> import posexport
        >>> posexport.GenerationConfig(max_new_tokens=20, temperature=0.8, top_p=0.9).sampling.greedy
        False
    """

    max_new_tokens: int = 64
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    stop_strings: Sequence[str] = ()
    eos_token_id: int | Sequence[int] | None = None
    prefill_chunk_size: int | None = None
    recompute: bool = True

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise PosexportError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if self.prefill_chunk_size is not None and self.prefill_chunk_size < 1:
            raise PosexportError(f"prefill_chunk_size must be at least 1 token, got {self.prefill_chunk_size}")
        if isinstance(self.stop_strings, str):
            object.__setattr__(self, "stop_strings", (self.stop_strings,))
        if "" in self.stop_strings:
            raise PosexportError("a stop string is empty, and would stop before the first token; leave it out")
        drawn = {
            name: value for name in ("temperature", "top_k", "top_p") if (value := getattr(self, name)) is not None
        }
        if self.do_sample is False and drawn:
            name, value = next(iter(drawn.items()))
            raise PosexportError(f"do_sample=False takes the likeliest token, and {name}={value} draws: leave one out")
        if self.eos_token_id is not None:
            token_ids(self.eos_token_id)
        _ = self.sampling  # checks its values

    @property
    def sampling(self) -> Sampling:
        """How the next token is chosen."""
        temperature = 1.0 if self.do_sample and self.temperature is None else self.temperature
        return Sampling(temperature=temperature, top_k=self.top_k, top_p=self.top_p, seed=self.seed)

    def changed(self, options: dict[str, Any]) -> "GenerationConfig":
        """With ``options`` in place of its own; PosexportError for an unknown name."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in options:
            if name not in known:
                hint = did_you_mean(name, known, f"it has {', '.join(known)}")
                raise PosexportError(f"generate has no option {name}; {hint}")
        return dataclasses.replace(self, **options)


def token_ids(ids: int | Iterable[int]) -> frozenset[int]:
    """One id, or several, as a set; PosexportError where one is no whole number."""
    try:
        return frozenset(operator.index(token) for token in ([ids] if isinstance(ids, int) else ids))
    except TypeError as err:
        raise PosexportError(f"eos_token_id must be a token id or a list of them, got {ids!r:.60}") from err
