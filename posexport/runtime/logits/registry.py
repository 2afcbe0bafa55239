"""All logits processors, in transformers' order. A new one is a module and a line here."""

from collections.abc import Callable

from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.logits import (
    bad_words,
    begin_suppress,
    encoder_no_repeat_ngram,
    encoder_repetition_penalty,
    epsilon,
    eta,
    exponential_decay_length_penalty,
    forced_bos,
    forced_eos,
    min_length,
    min_new_tokens,
    min_p,
    no_repeat_ngram,
    remove_invalid,
    renormalize,
    repetition_penalty,
    sequence_bias,
    suppress,
    temperature,
    top_h,
    top_k,
    top_p,
    typical,
    whisper_timestamps,
)
from posexport.runtime.logits.processor import Processor, Scores, Setting
from posexport.runtime.logits.token_rows import TokenRows

#: returns a processor, or None if the options do not ask for it
Make = Callable[[GenerationConfig, Setting], Processor | None]

PROCESSORS: tuple[Make, ...] = (
    sequence_bias.make,
    encoder_repetition_penalty.make,
    repetition_penalty.make,
    no_repeat_ngram.make,
    encoder_no_repeat_ngram.make,
    bad_words.make,
    min_length.make,
    min_new_tokens.make,
    forced_bos.make,
    forced_eos.make,
    remove_invalid.make,
    exponential_decay_length_penalty.make,
    suppress.make,
    begin_suppress.make,
    whisper_timestamps.make,
)
#: used only if tokens are sampled
WARPERS: tuple[Make, ...] = (
    temperature.make,
    top_h.make,
    top_k.make,
    top_p.make,
    min_p.make,
    typical.make,
    epsilon.make,
    eta.make,
)
LAST: tuple[Make, ...] = (renormalize.make,)


def processors(options: GenerationConfig, setting: Setting) -> list[Processor]:
    """Build the processors that the options ask for, in order."""
    makers = [*PROCESSORS, *(WARPERS if options.samples else ()), *LAST]
    return [processor for make in makers if (processor := make(options, setting)) is not None]


def process(scores_BV: Scores, rows: TokenRows, chain: list[Processor]) -> Scores:
    """Apply all processors."""
    for processor in chain:
        scores_BV = processor(scores_BV, rows)
    return scores_BV
