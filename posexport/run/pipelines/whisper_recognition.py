"""``automatic-speech-recognition`` by Whisper: windows of 30 seconds, one after another, or overlapping chunks."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.audio.chunks import ChunkLengths, Stride, chunk_lengths
from posexport.run.audio.extractors import Whisper
from posexport.run.audio.transcript import Seconds, SpeechTokens, Transcript
from posexport.run.batches import Batches
from posexport.run.pipelines.audio import AudioPipeline, Sound, extra_of, stride_of, with_defaults
from posexport.run.texts import Texts
from posexport.run.whisper import LANGUAGES, segments

NO_TIMESTAMPS = "<|notimestamps|>"


class WhisperRecognition(AudioPipeline):
    """The text of each sound, its language, and chunks between timestamps."""

    def setup(self) -> None:
        super().setup()
        if not isinstance(self.processor.extractor, Whisper):
            kind = type(self.processor.extractor).__name__
            raise PosexportError(
                f"this bundle's feature extractor is {kind}, not that of Whisper; use Session.generate"
            )
        self.extractor: Whisper = self.processor.extractor
        self.stated = self.files.json("generation_config.json")
        self.tokens = self._tokens()

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        chunk_length_s: float | None = None,
        stride_length_s: float | Sequence[float] | None = None,
        return_timestamps: bool | str | None = None,
        return_language: bool | None = None,
        generate_kwargs: Mapping[str, Any] | None = None,
        ignore_warning: bool | None = None,
        **options: Any,
    ) -> list[Any]:
        """``{"text"}`` of each sound, with timestamps or languages also ``chunks``.

        Args:
            items: sounds. A dictionary may have ``stride``, samples (left, right) that are context alone; what else it
                has is in the answer.
            batches: without effect: windows are read one by one, as each begins where the last one ended.
            chunk_length_s: seconds of overlapping chunks, read apart and joined by their tokens; None: windows of 30
                seconds, each from the last timestamp of the one before, as Whisper's ``generate`` reads long sounds.
            stride_length_s: seconds of context of a chunk on both sides or (left, right); None: a sixth of it.
            return_timestamps: seconds of each segment.
            return_language: the language of each chunk.
            generate_kwargs: options of `Session.generate`: ``language``, ``task``, ``num_beams`` and others.
            ignore_warning: without effect.
            options: the same.
        """
        if return_timestamps not in (None, False, True):
            raise PosexportError(
                f"return_timestamps must be True or False for Whisper, got {return_timestamps!r}; times of words need "
                "attention weights, which no bundle gives"
            )
        lengths = None
        if chunk_length_s:
            lengths = chunk_lengths(chunk_length_s, stride_length_s, self.extractor.sampling_rate)
        completed = with_defaults(self.stated, {**(generate_kwargs or {}), **options})
        timed = bool(return_timestamps or self.stated.get("return_timestamps"))
        return [self._answer(*each, lengths, completed, timed, bool(return_language)) for each in enumerate(items)]

    def _answer(
        self,
        number: int,
        item: Any,
        lengths: ChunkLengths | None,
        options: dict[str, Any],
        timed: bool,
        with_language: bool,
    ) -> dict[str, Any]:
        (samples,) = self.processor.read([item], first=number)
        rate = self.extractor.sampling_rate
        chunks: list[tuple[Sound, Stride | None]] = [(samples, stride_of(item, len(samples), rate))]
        if lengths is not None:
            chunks = [*lengths.cut(samples)]
        transcript = Transcript(self.tokens, timed)
        for sound, stride in chunks:
            ids, language = self._transcribed(sound, options, timed, whole=lengths is not None)
            if with_language and language is not None:
                ids = [language, *ids]
            seconds = (
                None if stride is None else Seconds(*(n / rate for n in (stride.length, stride.left, stride.right)))
            )
            transcript.add(ids, seconds)
        spoken = transcript.chunks()
        answer: dict[str, Any] = {"text": "".join(chunk["text"] for chunk in spoken)}
        left_out = {"language": not with_language, "timestamp": not timed}
        if timed or with_language:
            answer["chunks"] = [{key: chunk[key] for key in chunk if not left_out.get(key)} for chunk in spoken]
        return answer | {key: [value] * len(chunks) for key, value in extra_of(item).items()}

    def _transcribed(
        self, sound: Sound, options: dict[str, Any], timed: bool, *, whole: bool
    ) -> tuple[list[int], int | None]:
        """Tokens of a sound, window by window, and the token of its language. ``whole``: it is at most one window."""
        if len(sound) <= self.extractor.samples or whole:
            features = self.extractor.extract([sound])[self.extractor.output][0]
        else:
            if not timed and self.stated.get("return_timestamps") is False:
                raise PosexportError(
                    f"the sound has {len(sound) / self.extractor.sampling_rate:.1f} s, more than the window of "
                    f"{self.extractor.chunk_length} s, and longer ones are read by timestamps; give "
                    f"return_timestamps=True or chunk_length_s={self.extractor.chunk_length}"
                )
            features, timed = self.extractor.spectrogram(sound), True
        transcribed: list[int] = []
        begun: list[int] | None = None
        seek, frames = 0, features.shape[1]
        while seek < frames:
            count = min(frames - seek, self.extractor.frames)
            window = np.zeros((1, len(features), self.extractor.frames), np.float32)
            window[0, :, :count] = features[:, seek : seek + count]
            tokens, begun = self._generated(window, begun, options, timed)
            options = self._longer(options, len(begun))
            pieces, offset = segments(tokens, self.tokens.first_timestamp, frames=count)
            transcribed += [token for piece in pieces for token in piece.tokens]
            # a window that ends where it begins would come again for ever
            seek += offset if offset > 0 else count
        return transcribed, next((token for token in begun or [] if token in self.tokens.languages), None)

    def _longer(self, options: dict[str, Any], begun: int) -> dict[str, Any]:
        """Options of the next window: ``max_length`` grows by the decoder's first tokens, as in the library."""
        named = {**self.stated, **options}
        if named.get("max_length") is None or named.get("max_new_tokens") is not None:
            return options
        most, room = int(named["max_length"]), int(self.files.config["max_target_positions"])
        return {**options, "max_length": min(most + min(begun, room // 2 - 1), room)}

    def _generated(
        self, window: NDArray[np.float32], begun: list[int] | None, options: dict[str, Any], timed: bool
    ) -> tuple[list[int], list[int]]:
        """New tokens of a window, and those that the decoder began with; ``begun``: the same of the window before."""
        if begun is not None:  # language and task stay
            options = {name: value for name, value in options.items() if name not in ("language", "task")}
        done = self.session.generate(
            {self.extractor.output: window},
            decoder_prompts=None if begun is None else [begun],
            **{**options, "return_timestamps": timed},
        )
        best = done.completions[0]
        return list(best.tokens), list(best.prompt_tokens)

    def _tokens(self) -> SpeechTokens:
        tokenizer = Texts(self.session.directory, self.session.manifest).fresh()
        without = tokenizer.token_to_id(NO_TIMESTAMPS)
        if without is None:
            raise PosexportError(
                f"this bundle's tokenizer has no {NO_TIMESTAMPS}, so it is not that of Whisper; convert again with the "
                "right one (--tokenizer)"
            )
        names: dict[str, str] = {}
        for name, code in LANGUAGES.items():
            names.setdefault(code, name)  # the first name of a code is the one that transformers shows
        special = {
            number: token.content for number, token in tokenizer.get_added_tokens_decoder().items() if token.special
        }
        languages = {number: names[text[2:-2]] for number, text in special.items() if text[2:-2] in names}
        return SpeechTokens(
            special=frozenset(special),
            languages=languages,
            first_timestamp=without + 1,
            time_precision=self.extractor.chunk_length / int(self.files.config["max_source_positions"]),
            decode=functools.partial(tokenizer.decode, skip_special_tokens=False),
        )
