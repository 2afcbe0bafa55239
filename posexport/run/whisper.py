"""Whisper's special tokens: decoder prompt for language, task and timestamps; segments between timestamps.

Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (arXiv:2212.04356), section 2.3.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from posexport.base.options.check import did_you_mean
from posexport.errors import PosexportError
from posexport.run.generate.config import GenerationConfig
from posexport.run.logits.processor import Timestamps

#: seconds between two timestamp tokens, and of one frame of the spectrogram
TIME_PRECISION, FRAME_SECONDS = 0.02, 0.01
#: frames of the spectrogram for each state of the encoder
INPUT_STRIDE = 2
_LANGUAGES = """en:english zh:chinese de:german es:spanish ru:russian ko:korean fr:french ja:japanese pt:portuguese
tr:turkish pl:polish ca:catalan nl:dutch ar:arabic sv:swedish it:italian id:indonesian hi:hindi fi:finnish
vi:vietnamese he:hebrew uk:ukrainian el:greek ms:malay cs:czech ro:romanian da:danish hu:hungarian ta:tamil
no:norwegian th:thai ur:urdu hr:croatian bg:bulgarian lt:lithuanian la:latin mi:maori ml:malayalam cy:welsh sk:slovak
te:telugu fa:persian lv:latvian bn:bengali sr:serbian az:azerbaijani sl:slovenian kn:kannada et:estonian mk:macedonian
br:breton eu:basque is:icelandic hy:armenian ne:nepali mn:mongolian bs:bosnian kk:kazakh sq:albanian sw:swahili
gl:galician mr:marathi pa:punjabi si:sinhala km:khmer sn:shona yo:yoruba so:somali af:afrikaans oc:occitan ka:georgian
be:belarusian tg:tajik sd:sindhi gu:gujarati am:amharic yi:yiddish lo:lao uz:uzbek fo:faroese ht:haitian_creole
ps:pashto tk:turkmen nn:nynorsk mt:maltese sa:sanskrit lb:luxembourgish my:myanmar bo:tibetan tl:tagalog mg:malagasy
as:assamese tt:tatar haw:hawaiian ln:lingala ha:hausa ba:bashkir jw:javanese su:sundanese yue:cantonese my:burmese
ca:valencian nl:flemish ht:haitian lb:letzeburgesch ps:pushto pa:panjabi ro:moldavian ro:moldovan si:sinhalese
es:castilian zh:mandarin"""
#: codes of languages by their English names
LANGUAGES = {name.replace("_", " "): code for code, name in (pair.split(":") for pair in _LANGUAGES.split())}


class WhisperTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Whisper's special tokens, from ``generation_config.json``.

    Attributes:
        forced_decoder_ids: pairs of a position and a token, of older checkpoints; token None is the language.
        max_target_positions: length limit of the decoder, from config.json.
    """

    lang_to_id: dict[str, int] | None = None
    task_to_id: dict[str, int] | None = None
    no_timestamps_token_id: int | None = None
    max_initial_timestamp_index: int | None = None
    forced_decoder_ids: list[tuple[int, int | None]] | None = None
    is_multilingual: bool | None = None
    max_target_positions: int | None = None


def begin(
    tokens: WhisperTokens,
    start: int,
    options: GenerationConfig,
    rows: int,
    detect: Callable[[Sequence[int]], Sequence[int]],
) -> list[list[int]]:
    """Decoder prompts for ``rows`` audio windows: start, language, task, and ``<|notimestamps|>``.

    Args:
        start: ``decoder_start_token_id``.
        options: ``language``, ``task`` and ``return_timestamps`` are read.
        detect: returns the most likely of these language tokens for each window.

    Raises:
        PosexportError: the model does not have the language or the task.
    """
    check(tokens, options)
    named = options.language is not None or options.task is not None
    prompt = [start, *([] if named else _forced(tokens))]
    languages = _languages(tokens, options, rows)
    if languages is None and tokens.lang_to_id and (len(prompt) < 2 or prompt[1] is None):
        languages = list(detect(list(tokens.lang_to_id.values())))
    prompts = []
    for row in range(rows):
        start_ids = list(prompt)
        if languages is not None:
            start_ids[1:2] = [languages[row]]
        prompts.append(_ended(tokens, options, start_ids))
    return prompts


def check(tokens: WhisperTokens, options: GenerationConfig) -> None:
    """Raise PosexportError for options that the model has no tokens for."""
    multilingual = tokens.is_multilingual if options.is_multilingual is None else options.is_multilingual
    for name, needed in (("language", "lang_to_id"), ("task", "task_to_id")):
        if getattr(options, name) is None:
            continue
        if multilingual is False:
            raise PosexportError(f"this Whisper knows English alone, so it takes no {name}; leave it out")
        if getattr(tokens, needed) is None:
            raise PosexportError(
                f"generation_config.json has no {needed}, so {name} cannot be named; give decoder_prompts"
            )
    if options.task is not None and options.task not in (tokens.task_to_id or {}):
        raise PosexportError(f"task_to_id of generation_config.json has no {options.task}; leave task out")
    if options.return_timestamps and tokens.no_timestamps_token_id is None:
        raise PosexportError("generation_config.json has no no_timestamps_token_id, so there are no timestamps")


def language_token(tokens: WhisperTokens, language: str) -> int:
    """Token id of a language, by name, code or token text; PosexportError for an unknown language."""
    known = tokens.lang_to_id or {}
    name = language.lower()
    code = LANGUAGES.get(name, name)
    for text in (name, f"<|{code}|>"):
        if text in known:
            return known[text]
    codes = {text.strip("<|>") for text in known}
    names = [name for name, code in LANGUAGES.items() if code in codes]
    hint = did_you_mean(language, [*names, *codes], f"it knows {', '.join(sorted(codes))}")
    raise PosexportError(f"this Whisper has no language {language!r}; {hint}")


def _languages(tokens: WhisperTokens, options: GenerationConfig, rows: int) -> list[int] | None:
    if options.language is None:
        return None
    stated = [options.language] * rows if isinstance(options.language, str) else list(options.language)
    if len(stated) == 1:
        stated *= rows
    if len(stated) != rows:
        raise PosexportError(f"got {len(stated)} languages and {rows} sounds; give one language, or one for each sound")
    return [language_token(tokens, language) for language in stated]


def _forced(tokens: WhisperTokens) -> list[int | None]:
    """Tokens after the start token, from ``forced_decoder_ids`` of older checkpoints."""
    pairs = tokens.forced_decoder_ids or []
    if any(place != number for number, (place, _) in enumerate(pairs, 1)):
        if not pairs or pairs[0][0] != 1:
            return []
        raise PosexportError(
            f"forced_decoder_ids of generation_config.json are at {[place for place, _ in pairs]}; they must be at 1, "
            "2, 3 and so on: give language and task, or decoder_prompts"
        )
    return [token for _, token in pairs]


def _ended(tokens: WhisperTokens, options: GenerationConfig, prompt: list[Any]) -> list[int]:
    """Append the task token and ``<|notimestamps|>`` to a prompt."""
    tasks = tokens.task_to_id or {}
    if options.task is not None:
        prompt.append(tasks[options.task])
    elif options.language is not None and "transcribe" in tasks and not set(prompt) & set(tasks.values()):
        prompt.append(tasks["transcribe"])
    no_timestamps = tokens.no_timestamps_token_id
    if options.return_timestamps:
        prompt = prompt[:-1] if prompt[-1] == no_timestamps else prompt
    elif no_timestamps is not None and prompt[-1] != no_timestamps:
        prompt.append(no_timestamps)
    return [token for token in prompt if token is not None]


def timestamps(tokens: WhisperTokens, options: GenerationConfig, eos: Sequence[int]) -> Timestamps | None:
    """Timestamp tokens for the logits processor, or None if timestamps are not requested."""
    if not options.return_timestamps or tokens.no_timestamps_token_id is None or not eos:
        return None
    return Timestamps(tokens.no_timestamps_token_id + 1, eos[0], tokens.max_initial_timestamp_index)


def with_room(tokens: WhisperTokens, options: GenerationConfig, prompts: Sequence[Sequence[int]]) -> GenerationConfig:
    """``max_length`` plus the prompt's length, up to the decoder's limit, as in Whisper's ``generate``."""
    if options.max_length is None or options.max_new_tokens is not None:
        return options
    longest = max(map(len, prompts))
    most = options.max_length + longest
    if tokens.max_target_positions is not None:
        counted = min(longest, tokens.max_target_positions // 2 - 1)
        most = min(options.max_length + counted, tokens.max_target_positions)
    return msgspec.structs.replace(options, max_length=most)


@dataclass(frozen=True)
class Segment:
    """Tokens from one timestamp to the next, both included. Times are in seconds from the start of the audio."""

    start: float
    end: float
    tokens: list[int]


def segments(
    tokens: Sequence[int], first_timestamp: int, *, frames: int, offset: float = 0.0
) -> tuple[list[Segment], int]:
    """Segments of one window, and the number of spectrogram frames from this window to the next.

    Args:
        tokens: new tokens of a completion, without the end token.
        first_timestamp: id of ``<|0.00|>``.
        frames: length of the window without padding, in frames of 0.01 s.
        offset: start of the window, in seconds.

    Examples:
        >>> cut, following = segments([50, 7, 8, 60, 60, 9, 75], 50, frames=100)
        >>> [(each.start, each.end, each.tokens) for each in cut], following
        ([(0.0, 0.2, [50, 7, 8, 60]), (0.2, 0.5, [60, 9, 75])], 100)
    """
    stamps = [token >= first_timestamp for token in tokens]

    def seconds(place: int) -> float:
        return offset + (tokens[place] - first_timestamp) * TIME_PRECISION

    ends = [place for place in range(1, len(tokens)) if stamps[place - 1] and stamps[place]]
    if not ends:
        last = [place for place, stamp in enumerate(stamps) if stamp][-1:]
        until = offset + int(frames * FRAME_SECONDS / TIME_PRECISION) * TIME_PRECISION
        if last and tokens[last[0]] != first_timestamp:
            until = seconds(last[0])
        return [Segment(offset, until, list(tokens))], frames
    single = stamps[-2:] == [False, True]
    if single:
        ends.append(len(tokens))  # no speech after the last timestamp
    else:
        ends[-1] += 1  # the second one shows that the sound continues
    cut = []
    for begin_at, end_at in zip([0, *ends], ends, strict=False):
        last_place = end_at - 1 if single or end_at != ends[-1] else end_at - 2
        cut.append(Segment(seconds(begin_at), seconds(last_place), list(tokens[begin_at:end_at])))
    if single:
        return cut, frames
    return cut, (tokens[ends[-1] - 2] - first_timestamp) * INPUT_STRIDE
