"""``automatic-speech-recognition`` by Whisper: windows of 30 seconds, one after another, or overlapping chunks."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.audio.alignment import AlignmentHeads, token_times
from posexport.run.audio.chunks import ChunkLengths, Stride, chunk_lengths
from posexport.run.audio.extractors import Whisper
from posexport.run.audio.transcript import Seconds, SpeechTokens, Transcript
from posexport.run.batches import Batches
from posexport.run.generate.result import Completion
from posexport.run.pipelines.audio import AudioPipeline, Sound, extra_of, stride_of, with_defaults
from posexport.run.texts import Texts
from posexport.run.whisper import INPUT_STRIDE, LANGUAGES, TIME_PRECISION, segments

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
            return_timestamps: seconds of each segment; ``word``: of each word, from cross attention, for bundles with
                ``--outputs cross_attentions``.
            return_language: the language of each chunk.
            generate_kwargs: options of `Session.generate`: ``language``, ``task``, ``num_beams`` and others.
            ignore_warning: without effect.
            options: the same.
        """
        if return_timestamps not in (None, False, True, "word"):
            raise PosexportError(
                f"return_timestamps must be True, False or word for Whisper, got {return_timestamps!r}"
            )
        lengths = None
        if chunk_length_s:
            lengths = chunk_lengths(chunk_length_s, stride_length_s, self.extractor.sampling_rate)
        completed = with_defaults(self.stated, {**(generate_kwargs or {}), **options})
        times = return_timestamps or self.stated.get("return_timestamps")
        alignment = AlignmentHeads.of(self.stated, self.files.config, self.session.outputs) if times == "word" else None
        call = _CallOptions(completed, bool(times), bool(return_language), alignment)
        return [self._answer(*each, lengths, call) for each in enumerate(items)]

    def _answer(self, number: int, item: Any, lengths: ChunkLengths | None, call: "_CallOptions") -> dict[str, Any]:
        (samples,) = self.processor.read([item], first=number)
        rate = self.extractor.sampling_rate
        chunks: list[tuple[Sound, Stride | None]] = [(samples, stride_of(item, len(samples), rate))]
        if lengths is not None:
            chunks = [*lengths.cut(samples)]
        transcript = Transcript(self.tokens, call.timed, words=call.alignment is not None)
        for sound, stride in chunks:
            ids, ends, language = self._transcribed(sound, call, whole=lengths is not None)
            if call.language and language is not None:
                # transformers 5.24 gives each token the times of the next one here
                ids, ends = [language, *ids], [0.0, *ends] if ends else []
            seconds = (
                None if stride is None else Seconds(*(n / rate for n in (stride.length, stride.left, stride.right)))
            )
            transcript.add(ids, seconds, ends)
        spoken = transcript.chunks()
        answer: dict[str, Any] = {"text": "".join(chunk["text"] for chunk in spoken)}
        left_out = {"language": not call.language, "timestamp": not call.timed, "words": True}
        if call.timed or call.language:
            parts = spoken if call.alignment is None else [word for chunk in spoken for word in chunk["words"]]
            answer["chunks"] = [{key: part[key] for key in part if not left_out.get(key)} for part in parts]
        return answer | {key: [value] * len(chunks) for key, value in extra_of(item).items()}

    def _transcribed(
        self, sound: Sound, call: "_CallOptions", *, whole: bool
    ) -> tuple[list[int], list[float], int | None]:
        """Tokens of a sound, window by window, the seconds at which each ends, and the token of its language.

        ``whole``: it is at most one window.
        """
        options, timed = call.options, call.timed
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
        spoken_frames = min(math.ceil(len(sound) / self.extractor.hop_length), features.shape[1])
        transcribed: list[int] = []
        ends: list[float] = []
        begun: list[int] | None = None
        seek, frames = 0, features.shape[1]
        while seek < frames:
            count = min(frames - seek, self.extractor.frames)
            window = np.zeros((1, len(features), self.extractor.frames), np.float32)
            window[0, :, :count] = features[:, seek : seek + count]
            done = self._generated(window, begun, options, timed)
            tokens, begun = list(done.tokens), list(done.prompt_tokens)
            options = self._longer(options, len(begun))
            pieces, offset = segments(tokens, self.tokens.first_timestamp, frames=count)
            segment_tokens = [token for piece in pieces for token in piece.tokens]
            transcribed += segment_tokens
            if call.alignment is not None:
                seconds = self._aligned(call.alignment, window, done, spoken_frames - seek)
                start = np.float32(seek * TIME_PRECISION / INPUT_STRIDE)
                ends += (seconds[: len(segment_tokens)] + start).tolist()
            # a window that ends where it begins would come again for ever
            seek += offset if offset > 0 else count
        return transcribed, ends, next((token for token in begun or [] if token in self.tokens.languages), None)

    def _longer(self, options: dict[str, Any], begun: int) -> dict[str, Any]:
        """Options of the next window: ``max_length`` grows by the decoder's first tokens, as in the library."""
        named = {**self.stated, **options}
        if named.get("max_length") is None or named.get("max_new_tokens") is not None:
            return options
        most, room = int(named["max_length"]), int(self.files.config["max_target_positions"])
        return {**options, "max_length": min(most + min(begun, room // 2 - 1), room)}

    def _generated(
        self, window: NDArray[np.float32], begun: list[int] | None, options: dict[str, Any], timed: bool
    ) -> Completion:
        """The completion of a window; ``begun``: tokens that the decoder began with in the window before."""
        if begun is not None:  # language and task stay
            options = {name: value for name, value in options.items() if name not in ("language", "task")}
        done = self.session.generate(
            {self.extractor.output: window},
            decoder_prompts=None if begun is None else [begun],
            **{**options, "return_timestamps": timed},
        )
        return done.completions[0]

    def _aligned(
        self, alignment: AlignmentHeads, window: NDArray[np.float32], done: Completion, frames: int
    ) -> NDArray[np.float32]:
        """Seconds from the start of a window at which each new token ends, by a second call that reads all of them.

        ``frames``: of the sound from there on. The last token has the time of the one before it if no end follows.
        """
        count = len(done.tokens) - (done.finish != "stop")
        if count <= 0:
            return np.zeros(len(done.tokens), np.float32)
        ids = [*done.prompt_tokens, *done.tokens[:count]]
        feeds = {self.extractor.output: window, "decoder_input_ids": [ids]}
        got = self.session.run(feeds, outputs=alignment.outputs)
        weights_HTS = alignment.weights(got)[:, len(done.prompt_tokens) :]
        ends_T = token_times(weights_HTS, frames, alignment.filter_width)
        return np.append(ends_T, ends_T[-1:])[: len(done.tokens)]

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
            language=self.files.tokenizer_config.get("language") or "english",
        )


@dataclass(frozen=True)
class _CallOptions:
    """The options of a call. ``options``: of `Session.generate`; ``alignment``: for times of words."""

    options: dict[str, Any]
    timed: bool
    language: bool
    alignment: AlignmentHeads | None
