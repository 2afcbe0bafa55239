"""Whisper's tokens as text: chunks between timestamps, and overlapping chunks of sound joined.

What transformers' ``WhisperTokenizer._decode_asr`` returns, for tokens of windows and of strided chunks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posexport.run.audio.words import TimedToken, words

Ids = list[int]
Text = list[TimedToken]


@dataclass(frozen=True, kw_only=True)
class SpeechTokens:
    """What tokens mean.

    Attributes:
        special: ids that are neither text nor timestamps.
        languages: of these, names of languages.
        first_timestamp: the id of ``<|0.00|>``.
        time_precision: seconds from one timestamp to the next.
        decode: ids to text.
        language: English name of the tokenizer's language, for words where none was detected.
    """

    special: frozenset[int]
    languages: Mapping[int, str]
    first_timestamp: int
    time_precision: float
    decode: Callable[[Ids], str]
    language: str = "english"


@dataclass(frozen=True)
class Seconds:
    """The length of a chunk of sound, and of the context at both ends that its neighbours cover too."""

    length: float
    left: float
    right: float


@dataclass
class _Chunk:
    language: str | None = None
    start: float | None = None
    end: float | None = None
    text: str = ""
    words: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class _Times:
    """Timestamps of one chunk of sound: they restart where a window of the model ends."""

    tokens: SpeechTokens
    segment_size: int
    before: float = 0.0
    largest: float = 0.0
    last_but_one: float = 0.0

    def seconds(self, ids: Ids, place: int) -> float:
        """Of the timestamp at ``place``, from the beginning of the chunk of sound."""
        first = self.tokens.first_timestamp
        value = (ids[place] - first) * self.tokens.time_precision
        if value < self.largest:  # a window later
            if place >= 2 and not (ids[place - 1] >= first and ids[place - 2] >= first):
                self.before += self.tokens.time_precision * self.segment_size
            else:
                self.largest = self.last_but_one
                self.before += self.last_but_one
        self.last_but_one, self.largest = self.largest, value
        return value + self.before


@dataclass
class Transcript:
    """Text that grows by the tokens of chunks of sound, in order.

    Attributes:
        tokens: what they mean.
        timestamps: return chunks of text between timestamps; else a change of language begins a new chunk.
        words: add the words of each chunk with their times.
        segment_size: timestamps of a window of the model.
    """

    tokens: SpeechTokens
    timestamps: bool
    words: bool = False
    segment_size: int = 1500
    _chunks: list[_Chunk] = field(default_factory=list)
    _chunk: _Chunk = field(default_factory=_Chunk)
    _language: str | None = None
    _offset: float = 0.0
    _waiting: list[Text] = field(default_factory=list)
    _skip: bool = False

    def add(self, ids: Ids, stride: Seconds | None = None, token_ends: Sequence[float] = ()) -> None:
        """Tokens of the next chunk of sound; ``stride``: the context that its neighbours cover too.

        ``token_ends``: the seconds at which each token ends, from the beginning of the chunk of sound, for words.
        """
        first, last = self._between(ids, stride)
        times = _Times(self.tokens, self.segment_size)
        text: Text = []
        for place, token in enumerate(ids):
            if token in self.tokens.special:
                text = self._special(token, text)
            elif token < self.tokens.first_timestamp:
                text.append(TimedToken(token, *self._span(place, token_ends)))
            else:
                seconds = round(times.seconds(ids, place) + self._offset, 2)
                text = self._stamp(token, seconds, text, first, last)
        if stride is not None:
            self._offset += stride.length - stride.right
        if text:
            self._waiting.append(text)
        elif not any(self._waiting):
            self._begin()

    def chunks(self) -> list[dict[str, Any]]:
        """All chunks so far: ``language``, ``timestamp``, ``text`` and ``words`` with the same keys."""
        if self._waiting:
            self._end()
        return [
            {
                "language": chunk.language,
                "timestamp": (chunk.start, chunk.end),
                "text": chunk.text,
                "words": [{"language": chunk.language, **word} for word in chunk.words],
            }
            for chunk in self._chunks
        ]

    def _span(self, place: int, ends: Sequence[float]) -> list[tuple[float, float]]:
        """The token begins where the one before it ends; empty without times."""
        if not len(ends):
            return []
        start = float(ends[place - 1]) if place else 0.0
        return [(round(start + self._offset, 2), round(float(ends[place]) + self._offset, 2))]

    def _between(self, ids: Ids, stride: Seconds | None) -> tuple[float, int | None]:
        """Timestamps that count: from the first on, and before the last, which are at the edges of the context."""
        first, last = self.tokens.first_timestamp, None
        if stride is None:
            return first, None
        self._offset -= stride.left
        if stride.right:
            for token in reversed(ids):
                if token < first:
                    continue
                if last is not None and (token - first) * self.tokens.time_precision < stride.length - stride.right:
                    break
                last = token
        return (first + stride.left / self.tokens.time_precision if stride.left else first), last

    def _special(self, token: int, text: Text) -> Text:
        """A language token sets the chunk's language; other special tokens say nothing. Returns the text so far."""
        language = self.tokens.languages.get(token)
        if language is None:
            return text
        if self._language and language != self._language and not self.timestamps:
            self._waiting.append(text)
            self._end()
            text = []
        self._chunk.language = self._language = language
        return text

    def _stamp(self, token: int, seconds: float, text: Text, first: float, last: int | None) -> Text:
        """A timestamp begins or ends a chunk of text; returns the text so far. Those in the context are left out."""
        if last and token >= last:
            self._skip = True  # and the next one, as they come in pairs
        elif self._skip or (self._waiting and token < first):
            self._skip = False
        elif self._chunk.start is None:
            self._chunk.start = seconds
        elif seconds != self._chunk.start:  # else the same one twice, which begins it
            self._chunk.end = seconds
            self._waiting.append(text)
            self._end()
            return []
        return text

    def _end(self) -> None:
        text = joined(self._waiting)
        self._chunk.text = self.tokens.decode([one.token for one in text])
        if self.words:
            language = self._language or self.tokens.language
            self._chunk.words = words(text, self.tokens.decode, language, min(self.tokens.special))
        self._chunks.append(self._chunk)
        self._begin()

    def _begin(self) -> None:
        self._chunk, self._waiting = _Chunk(self._language), []


def joined(sequences: Sequence[Text]) -> Text:
    """Token sequences of overlapping chunks as one: cut in the middle of where each agrees best with the next.

    Every shift of the two is scored by the part of the tokens that agree, and 0.0001 for each position of the shift.
    Tokens with times agree only in the order of their times.
    """
    left, tokens = sequences[0], list[TimedToken]()
    for right in sequences[1:]:
        best, cut = 0.0, (len(left), 0)
        for shift in range(1, len(left) + len(right)):
            start, stop = max(0, len(left) - shift), min(len(left), len(left) + len(right) - shift)
            after, until = max(0, shift - len(left)), min(len(right), shift)
            pairs = zip(left[start:stop], right[after:until], strict=True)
            agree = sum(a.token == b.token and a.span <= b.span for a, b in pairs)
            score = agree / shift + shift / 10000.0
            if agree > 1 and score > best:
                best, cut = score, ((start + stop) // 2, (after + until) // 2)
        tokens += left[: cut[0]]
        left = right[cut[1] :]
    return [*tokens, *left]
