"""``automatic-speech-recognition`` by an encoder of raw sound and a decoder of text (Moonshine, wav2vec2 with BART)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from posexport.errors import PosexportError
from posexport.run.audio.chunks import chunk_lengths
from posexport.run.audio.extractors import Arrays, pad
from posexport.run.audio.processor import MASK
from posexport.run.batches import Batches
from posexport.run.pipelines.audio import AudioPipeline, Sound, extra_of, with_defaults
from posexport.run.pipelines.generating import GeneratingPipeline


class SpeechToText(AudioPipeline, GeneratingPipeline):
    """The text of each sound."""

    def setup(self) -> None:
        AudioPipeline.setup(self)
        GeneratingPipeline.setup(self)

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        chunk_length_s: float | None = None,
        stride_length_s: float | Sequence[float] | None = None,
        return_timestamps: bool | str | None = None,
        generate_kwargs: Mapping[str, Any] | None = None,
        ignore_warning: bool | None = None,
        **options: Any,
    ) -> list[Any]:
        """``{"text"}`` of each sound, with what else a dictionary has.

        Args:
            items: sounds.
            batches: sounds of one call, which are padded on the right; by default a sound alone, as in transformers.
            chunk_length_s: seconds of overlapping chunks, whose tokens follow one another, as in transformers: words
                in the overlap come twice.
            stride_length_s: seconds that a chunk shares on both sides or (left, right); None: a sixth of it.
            return_timestamps: none but False: only Whisper and CTC have timestamps.
            generate_kwargs: options of `Session.generate`: ``num_beams`` and others.
            ignore_warning: without effect.
            options: the same.
        """
        if return_timestamps:
            raise PosexportError(
                f"return_timestamps is {return_timestamps!r}, and this model gives no times: Whisper and models with "
                "CTC do; leave it out"
            )
        if strided := [item for item in items if isinstance(item, Mapping) and item.get("stride") is not None]:
            raise PosexportError(f"stride is {strided[0]['stride']!r}, which is for models with CTC; leave it out")
        lengths, rate = None, self.processor.sampling_rate
        if chunk_length_s:
            lengths = chunk_lengths(chunk_length_s, stride_length_s, rate)
        sounds = [self.processor.read([item], first=number)[0] for number, item in enumerate(items)]
        chunks = [[sound] if lengths is None else [chunk for chunk, _ in lengths.cut(sound)] for sound in sounds]
        texts = iter(self._tokens([chunk for each in chunks for chunk in each], batches, generate_kwargs, options))
        answers = []
        for item, each in zip(items, chunks, strict=True):
            tokens = [token for _ in each for token in next(texts)]
            extra = {key: [value] * len(each) for key, value in extra_of(item).items()}
            answers.append({"text": self.decode(tokens, skip_special_tokens=True), **extra})
        return answers

    def _tokens(
        self, sounds: Sequence[Sound], batches: Batches, stated: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> list[list[int]]:
        """The best completion of each sound."""
        chosen, size = with_defaults(self.stated, {**(stated or {}), **options}), batches.batch_size or 1
        tokens: list[list[int]] = []
        for start in range(0, len(sounds), size):
            group = sounds[start : start + size]
            done = self.session.generate(self._arrays(group), **chosen).completions
            tokens += [list(completion.tokens) for completion in done[:: len(done) // len(group)]]
        return tokens

    def _arrays(self, sounds: Sequence[Sound]) -> Arrays:
        """Arrays for sounds that are normalised one by one, and padded then."""
        name, extractor = self.processor.extractor.output, self.processor.extractor
        rows = [extractor.extract([sound])[name][0] for sound in sounds]
        values, mask = pad(rows, max(map(len, rows)), extractor)
        return {name: values, MASK: np.asarray(mask)}
