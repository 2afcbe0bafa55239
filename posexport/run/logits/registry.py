"""All logits processors, in transformers' order. A new one is a module and a line here."""

from collections.abc import Callable

from posexport.run.generate.config import GenerationConfig
from posexport.run.logits import forced, repetition, tokens, warpers, whisper_timestamps
from posexport.run.logits.processor import Processor, Scores, Setting, TokenRows

#: returns a processor, or None if the options do not ask for it
Make = Callable[[GenerationConfig, Setting], Processor | None]

PROCESSORS: tuple[Make, ...] = (
    tokens.make_sequence_bias,
    repetition.make_encoder_repetition_penalty,
    repetition.make_repetition_penalty,
    repetition.make_no_repeat_ngram,
    repetition.make_encoder_no_repeat_ngram,
    tokens.make_bad_words,
    forced.make_min_length,
    forced.make_min_new_tokens,
    forced.make_forced_bos,
    forced.make_forced_eos,
    tokens.make_remove_invalid,
    forced.make_exponential_decay_length_penalty,
    tokens.make_suppress,
    tokens.make_begin_suppress,
    whisper_timestamps.make,
)
#: used only if tokens are sampled
WARPERS: tuple[Make, ...] = (
    warpers.make_temperature,
    warpers.make_top_h,
    warpers.make_top_k,
    warpers.make_top_p,
    warpers.make_min_p,
    warpers.make_typical,
    warpers.make_epsilon,
    warpers.make_eta,
)
LAST: tuple[Make, ...] = (warpers.make_renormalize,)


def processors(options: GenerationConfig, setting: Setting) -> list[Processor]:
    """Build the processors that the options ask for, in order."""
    makers = [*PROCESSORS, *(WARPERS if options.samples else ()), *LAST]
    return [processor for make in makers if (processor := make(options, setting)) is not None]


def process(scores_BV: Scores, rows: TokenRows, chain: list[Processor]) -> Scores:
    """Returns the scores after all processors of the chain, in order."""
    for processor in chain:
        scores_BV = processor(scores_BV, rows)
    return scores_BV
