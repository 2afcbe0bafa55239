"""Options of `posexport.Session.generate`, with transformers' names. The command line is generated from them."""

import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from posexport.base.options.check import did_you_mean
from posexport.base.options.option import Listed, Option, options_in
from posexport.errors import PosexportError
from posexport.run.unsupported import UNSUPPORTED

#: headings of ``posexport generate --help``
STOPPING, SAMPLING, BEAMS, PENALTIES, TOKENS, WHISPER = (
    "Stopping",
    "Sampling",
    "Beam search",
    "Repetition",
    "Tokens",
    "Whisper",
)
RUNTIME = "Runtime"
#: in the order of the help text
GROUPS = (STOPPING, SAMPLING, BEAMS, PENALTIES, TOKENS, WHISPER, RUNTIME)
#: new tokens where neither the call nor generation_config.json says how many
MAX_NEW_TOKENS = 64
#: transformers' default, where tokens are sampled
TOP_K = 50


class GenerationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Options of generation, with transformers' names and meanings.

    None: as the bundle's ``generation_config.json`` says, else transformers' default; of ``max_new_tokens`` 64. What
    each does: ``help(posexport.GenerationConfig)``, ``posexport generate --help``.

    Examples:
        >>> import posexport
        >>> posexport.GenerationConfig(max_new_tokens=20, temperature=0.8, top_p=0.9).samples
        True
    """

    max_new_tokens: Annotated[
        int | None,
        Option(
            group=STOPPING, metavar="N", least=1, help="Most new tokens; default: as the model says, 64 if it does not."
        ),
    ] = None
    max_length: Annotated[
        int | None, Option(group=STOPPING, metavar="N", least=1, help="Most tokens, those of the prompt included.")
    ] = None
    min_new_tokens: Annotated[
        int | None, Option(group=STOPPING, metavar="N", least=0, help="No end token before so many new tokens.")
    ] = None
    min_length: Annotated[
        int | None,
        Option(group=STOPPING, metavar="N", least=0, help="No end token before so many tokens, prompt included."),
    ] = None
    stop_strings: Annotated[
        str | Sequence[str] | None,
        Option(
            group=STOPPING,
            metavar="TEXT",
            help="Stop before this text (repeatable).",
            python="Texts that end a completion, which does not hold them.",
        ),
    ] = None
    eos_token_id: Annotated[
        int | Sequence[int] | None,
        Option(
            group=STOPPING,
            metavar="ID",
            help="Token that ends a completion (repeatable); default: those of the model.",
            python="Tokens that end a completion; ``()``: none.",
        ),
    ] = None
    exponential_decay_length_penalty: Annotated[
        Sequence[float] | None,
        Option(
            group=STOPPING,
            metavar="JSON",
            json=True,
            help="[START, FACTOR]: end tokens become likelier by powers of FACTOR after START new tokens.",
        ),
    ] = None
    do_sample: Annotated[
        bool | None,
        Option(
            group=SAMPLING,
            help="Sample, also where none of the options below is given.",
            python="Sample; False: take the most likely token. None: sample where an option of sampling is given, else "
            "as generation_config.json says.",
        ),
    ] = None
    temperature: Annotated[
        float | None, Option(group=SAMPLING, help="Sample with logits divided by this; 0 is greedy.")
    ] = None
    top_k: Annotated[
        int | None, Option(group=SAMPLING, help="Sample among the K most likely tokens; 0: all. Default: 50.")
    ] = None
    top_p: Annotated[
        float | None,
        Option(group=SAMPLING, help="Sample among the fewest tokens whose probabilities add up to this."),
    ] = None
    min_p: Annotated[
        float | None,
        Option(group=SAMPLING, help="Sample among tokens at least this fraction as likely as the most likely one."),
    ] = None
    top_h: Annotated[
        float | None,
        Option(group=SAMPLING, help="Sample among the most likely tokens that have this share of the entropy."),
    ] = None
    typical_p: Annotated[
        float | None,
        Option(group=SAMPLING, help="Locally typical sampling, from tokens whose probabilities add up to this."),
    ] = None
    epsilon_cutoff: Annotated[
        float | None, Option(group=SAMPLING, help="Sample among tokens of at least this probability.")
    ] = None
    eta_cutoff: Annotated[
        float | None, Option(group=SAMPLING, help="The same with a threshold that falls with the entropy.")
    ] = None
    seed: Annotated[
        int,
        Option(
            group=SAMPLING,
            metavar="N",
            least=0,
            help="Random seed for sampling.",
            python="Of sampling: the same tokens for the same seed, prompt and options, in any batch.",
        ),
    ] = 0
    num_return_sequences: Annotated[
        int | None, Option(group=SAMPLING, metavar="N", least=1, help="Completions of each prompt.")
    ] = None
    num_beams: Annotated[
        int | None, Option(group=BEAMS, metavar="N", least=1, help="Beams of beam search; 1: no beam search.")
    ] = None
    length_penalty: Annotated[
        float | None,
        Option(group=BEAMS, help="Exponent of the length that scores are divided by; above 0 favours longer texts."),
    ] = None
    early_stopping: Annotated[
        bool | Literal["never"] | None,
        Option(
            group=BEAMS,
            metavar="JSON",
            json=True,
            help='true: stop at NUM_BEAMS finished beams; false: heuristic; "never": no better beam is possible.',
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None, Option(group=PENALTIES, help="Above 1: tokens of the text so far become less likely.")
    ] = None
    encoder_repetition_penalty: Annotated[
        float | None, Option(group=PENALTIES, help="Above 1: tokens of the encoder's input become more likely.")
    ] = None
    no_repeat_ngram_size: Annotated[
        int | None, Option(group=PENALTIES, metavar="N", least=0, help="No N tokens in a row occur twice.")
    ] = None
    encoder_no_repeat_ngram_size: Annotated[
        int | None,
        Option(group=PENALTIES, metavar="N", least=0, help="No N tokens in a row are those of the encoder's input."),
    ] = None
    bad_words_ids: Annotated[
        Sequence[Sequence[int]] | None,
        Option(group=TOKENS, metavar="JSON", json=True, help="Lists of tokens that never occur in a row."),
    ] = None
    sequence_bias: Annotated[
        Any,
        Option(
            group=TOKENS,
            metavar="JSON",
            json=True,
            help="[[IDS, BIAS], ...]: added to the score of the last of IDS behind the others.",
        ),
    ] = None
    suppress_tokens: Annotated[
        Sequence[int] | None, Option(group=TOKENS, metavar="ID", help="Token that never occurs (repeatable).")
    ] = None
    begin_suppress_tokens: Annotated[
        Sequence[int] | None, Option(group=TOKENS, metavar="ID", help="The same of the first new token (repeatable).")
    ] = None
    forced_bos_token_id: Annotated[
        int | None, Option(group=TOKENS, metavar="ID", least=0, help="First new token behind one token.")
    ] = None
    forced_eos_token_id: Annotated[
        int | Sequence[int] | None, Option(group=TOKENS, metavar="ID", help="Last token at the most length.")
    ] = None
    remove_invalid_values: Annotated[
        bool | None, Option(group=TOKENS, help="Replace NaN and infinite scores instead of stopping.")
    ] = None
    renormalize_logits: Annotated[
        bool | None, Option(group=TOKENS, help="Normalize scores behind all other options.")
    ] = None
    language: Annotated[
        str | Sequence[str] | None,
        Option(
            group=WHISPER,
            metavar="NAME",
            help="Spoken language: en or english (repeatable: one for each sound); default: detected.",
        ),
    ] = None
    task: Annotated[
        Literal["transcribe", "translate"] | None,
        Option(group=WHISPER, help="Write the language that is spoken, or English."),
    ] = None
    return_timestamps: Annotated[
        bool | None, Option(group=WHISPER, help="Generate timestamp tokens around segments.")
    ] = None
    is_multilingual: Annotated[bool | None, Option(python="Whether the model knows more languages than English.")] = (
        None
    )
    prefill_chunk_size: Annotated[
        int | None,
        Option(group=RUNTIME, metavar="N", least=1, help="Chunked prefill, N tokens at a time: less memory."),
    ] = None
    recompute: Annotated[
        bool,
        Option(
            group=RUNTIME,
            flag="no-recompute",
            help="Reject prompts for which a longrope model would compute its cached keys again.",
            python="Read a row again from its start where it outgrows the length up to which its cached keys are valid "
            "(LongRoPE); False rejects such prompts.",
        ),
    ] = True

    def __post_init__(self) -> None:
        for name, listed in _OPTIONS.items():
            value = getattr(self, name)
            if hasattr(value, "tolist"):  # arrays have no truth value
                value = value.tolist()
                msgspec.structs.force_setattr(self, name, value)
            if value is not None:
                _check(name, value, listed)
        if isinstance(self.stop_strings, str):
            msgspec.structs.force_setattr(self, "stop_strings", (self.stop_strings,))
        if "" in (self.stop_strings or ()):
            raise PosexportError("a stop string is empty, and would stop before the first token; leave it out")
        if self.do_sample is False and (drawn := self.sampling_options):
            name, value = next(iter(drawn.items()))
            raise PosexportError(f"do_sample=False takes the likeliest token, and {name}={value} draws: leave one out")

    @property
    def sampling_options(self) -> dict[str, Any]:
        """Options of sampling that are set."""
        return {name: value for name in SAMPLING_OPTIONS if (value := getattr(self, name)) is not None}

    @property
    def samples(self) -> bool:
        """Whether tokens are sampled."""
        samples = bool(self.sampling_options) if self.do_sample is None else self.do_sample
        return samples and self.temperature != 0

    @property
    def beams(self) -> int:
        return self.num_beams or 1

    @property
    def sequences(self) -> int:
        """Number of completions per prompt."""
        return self.num_return_sequences or 1

    def most(self, prompt: int) -> int:
        """Maximum number of new tokens after a prompt of ``prompt`` tokens; below 1 if ``max_length`` allows none."""
        if self.max_new_tokens is None and self.max_length is not None:
            return self.max_length - prompt
        return self.max_new_tokens or MAX_NEW_TOKENS

    def changed(self, options: Mapping[str, Any]) -> "GenerationConfig":
        """Return a config with ``options`` replaced; PosexportError for an unknown name."""
        for name in options:
            if name in UNSUPPORTED:
                raise PosexportError(f"generate has no option {name}: {UNSUPPORTED[name]}; leave it out")
            if name not in self.__struct_fields__:
                hint = did_you_mean(name, self.__struct_fields__)
                listed = "help(posexport.GenerationConfig) lists the options"
                raise PosexportError(f"generate has no option {name}; {hint and f'{hint} '}{listed}")
        return msgspec.structs.replace(self, **options) if options else self


#: options without effect unless tokens are sampled
SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
_OPTIONS = options_in(GenerationConfig)

#: allowed values by option, as a predicate and a phrase
_BOUNDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda x: x >= 0 and math.isfinite(x), "0 (the best token) or more"),
    "top_k": (lambda k: k >= 0, "a number of tokens, or 0 for all"),
    "top_p": (lambda p: 0 < p <= 1, "a probability above 0 and at most 1"),
    "min_p": (lambda p: 0 <= p <= 1, "a fraction from 0 to 1"),
    "top_h": (lambda h: 0 < h <= 1, "a fraction above 0 and at most 1"),
    "typical_p": (lambda p: 0 < p <= 1, "a probability above 0 and at most 1"),
    "epsilon_cutoff": (lambda p: 0 <= p < 1, "a probability from 0 to below 1"),
    "eta_cutoff": (lambda p: 0 <= p < 1, "a probability from 0 to below 1"),
    "repetition_penalty": (lambda x: x > 0 and math.isfinite(x), "above 0 (1: no penalty)"),
    "encoder_repetition_penalty": (lambda x: x > 0 and math.isfinite(x), "above 0 (1: no penalty)"),
    "length_penalty": (math.isfinite, "a finite number"),
    "exponential_decay_length_penalty": (lambda pair: len(pair) == 2, "two values, a start and a factor"),
    "prefill_chunk_size": (lambda n: n >= 1, "at least 1 token"),
    "seed": (lambda n: n >= 0, "0 or more"),
    "early_stopping": (lambda x: isinstance(x, bool) or x == "never", "True, False or 'never'"),
    "bad_words_ids": (lambda words: all(len(word) for word in words), "lists of at least one token id"),
}


def token_ids(ids: int | Iterable[int]) -> tuple[int, ...]:
    """Token ids from one id or several, without duplicates; PosexportError if one is no whole number."""
    try:
        listed: Iterable[Any] = ids if isinstance(ids, Iterable) else [ids]
        return tuple(dict.fromkeys(operator.index(token) for token in listed))
    except TypeError as err:
        raise PosexportError(f"eos_token_id must be a token id or a list of them, got {ids!r:.60}") from err


def _check(name: str, value: Any, listed: Listed) -> None:
    """Raise PosexportError if a value has the wrong type or is out of bounds."""
    if name == "eos_token_id":
        token_ids(value)
        return
    if not any(_fits(value, kind) for kind in listed.kinds):
        raise PosexportError(f"{name} must be {_phrase(listed)}, got {value!r:.60}")
    least = listed.about.least
    fits, phrase = _BOUNDS.get(name, (lambda n: least is None or n >= least, f"at least {least}"))
    if not fits(value):
        raise PosexportError(f"{name} must be {phrase}, got {value}")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value has a type (``Sequence[int]`` for example). Ints are valid floats; bools are no numbers."""
    if kind is Any:
        return True
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is not None:
        (inner,) = get_args(kind)
        listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return listed and all(_fits(element, inner) for element in value)
    if kind is int:
        return _is_index(value)
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    return isinstance(value, kind)


def _is_index(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool) and not getattr(value, "shape", ())


_PHRASES = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}


def _phrase(listed: Listed) -> str:
    """The types of an option, as messages name them."""
    if listed.choices and str not in listed.kinds and bool not in listed.kinds:
        return " or ".join(listed.choices)
    if listed.name in _BOUNDS and listed.name in ("early_stopping", "exponential_decay_length_penalty"):
        return _BOUNDS[listed.name][1]
    one = [_PHRASES[kind] for kind in listed.kinds if kind in _PHRASES]
    several = [_several(kind) for kind in listed.kinds if kind not in _PHRASES and get_origin(kind) is not Literal]
    return " or ".join([*one, *several])


def _several(kind: Any) -> str:
    (inner,) = get_args(kind)
    if get_origin(inner) is not None:
        return "a list of lists of token ids"
    return {int: "a list of token ids", str: "a list of texts"}.get(inner, "a list of numbers")


_ATTRIBUTES = (f"{name}: {listed.about.python or listed.about.help}" for name, listed in _OPTIONS.items())
# Python 3.13 compiles docstrings without their indentation
GenerationConfig.__doc__ = inspect.cleandoc(GenerationConfig.__doc__ or "").replace(
    "Examples:", "\n    ".join(["Attributes:", *_ATTRIBUTES]) + "\n\nExamples:"
)
