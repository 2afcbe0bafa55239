"""Tasks about sound: ``audio-classification`` and ``automatic-speech-recognition``."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.options.check import check_choice
from posexport.errors import PosexportError
from posexport.run.activations import sigmoid, softmax
from posexport.run.audio import AudioProcessor, open_processor
from posexport.run.audio.chunks import ChunkLengths, Stride, chunk_lengths
from posexport.run.audio.ctc import CtcTokenizer, Span, open_tokenizer
from posexport.run.audio.sounds import are_numbers
from posexport.run.batches import Batches
from posexport.run.pipelines.pipeline import Floats, Pipeline
from posexport.run.scores import LOGITS

Sound = NDArray[np.float32]


class AudioPipeline(Pipeline):
    """A task on sounds: paths, bytes, open files, arrays, dictionaries with ``raw`` or ``array``."""

    def setup(self) -> None:
        self.processor: AudioProcessor = open_processor(self.session.directory, self.session.manifest)

    def grouped(self, inputs: Any, options: dict[str, Any]) -> Any:
        """A tuple or list of numbers is one sound, as an array is."""
        return np.asarray(inputs) if isinstance(inputs, (list, tuple)) and inputs and are_numbers(inputs) else inputs

    def logits(self, sounds: Sequence[Sound], batches: Batches) -> Iterator[NDArray[np.float32]]:
        """Logits of each sound, in order. Sounds share a call only where they are of one length: nothing is padded."""
        most = batches.batch_size or 1
        waiting: list[Sound] = []
        for sound in sounds:
            if waiting and (len(waiting) == most or len(waiting[0]) != len(sound)):
                yield from self._run(waiting)
                waiting = []
            waiting.append(sound)
        if waiting:
            yield from self._run(waiting)

    def _run(self, sounds: Sequence[Sound]) -> NDArray[np.float32]:
        values = self.session.run(self.processor.extract(sounds), outputs=[LOGITS])
        return values[LOGITS].astype(np.float32, copy=False)


#: of transformers' pipeline with a decoder, where neither the call nor generation_config.json says anything
DEFAULTS: dict[str, Any] = {"max_new_tokens": 256, "num_beams": 5}


def with_defaults(stated: Mapping[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """``options`` with the defaults for what neither they nor the checkpoint, which has ``stated``, say."""
    known = {name for name, value in {**stated, **options}.items() if value is not None}
    left_out = known | ({"max_new_tokens"} if "max_length" in known else set())
    return {name: value for name, value in DEFAULTS.items() if name not in left_out} | options


FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {"softmax": softmax, "sigmoid": sigmoid, "none": lambda x: x}
#: functions that transformers applies by ``problem_type``; softmax to all others
OF_PROBLEM = {"regression": "none", "multi_label_classification": "sigmoid"}


class AudioClassification(AudioPipeline):
    """Labels and scores of each sound, the best first."""

    def answers(
        self, items: list[Any], batches: Batches, *, top_k: int | None = None, function_to_apply: str | None = None
    ) -> list[Any]:
        """A list of ``{"score", "label"}`` for each sound.

        Args:
            items: sounds.
            batches: sounds of one length that may share a call.
            top_k: labels; None: all.
            function_to_apply: ``softmax``, ``sigmoid`` or ``none``; None: by the ``problem_type`` of config.json.
        """
        if top_k is not None and top_k < 1:
            raise PosexportError(f"top_k must be at least 1, got {top_k}")
        if function_to_apply is None:
            function_to_apply = OF_PROBLEM.get(str(self.files.config.get("problem_type")), "softmax")
        check_choice("function_to_apply", function_to_apply, FUNCTIONS)
        return [
            self._answer(FUNCTIONS[function_to_apply](logits_L), top_k)
            for logits_L in self.logits(self.processor.read(items), batches)
        ]

    def _answer(self, scores: Floats, top_k: int | None) -> list[dict[str, Any]]:
        names = self.files.labels(len(scores))
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [{"score": float(scores[place]), "label": names[place]} for place in order]


#: product of the strides of wav2vec2's convolutions, where config.json has none
STRIDES = (5, 2, 2, 2, 2, 2, 2)


class AutomaticSpeechRecognition(AudioPipeline):
    """The text of each sound, and its timestamps."""

    def setup(self) -> None:
        super().setup()
        self.tokenizer: CtcTokenizer = open_tokenizer(
            self.files.json("vocab.json"), self.files.tokenizer_config, self.files.json("special_tokens_map.json")
        )

    def answers(
        self,
        items: list[Any],
        batches: Batches,
        *,
        chunk_length_s: float | None = None,
        stride_length_s: float | Sequence[float] | None = None,
        return_timestamps: bool | str | None = None,
    ) -> list[Any]:
        """``{"text"}`` of each sound, with timestamps also ``chunks``.

        Args:
            items: sounds. A dictionary may have ``stride``, samples (left, right) that are context alone; what else it
                has is in the answer.
            batches: chunks of one length that may share a call.
            chunk_length_s: seconds of the chunks that long sounds are cut into; None: a sound is one chunk.
            stride_length_s: seconds of context of a chunk on both sides or (left, right); None: a sixth of it.
            return_timestamps: ``char`` or ``word``, seconds of each.
        """
        if return_timestamps not in (None, False, "char", "word"):
            raise PosexportError(
                f"return_timestamps must be char or word for a model with CTC, got {return_timestamps!r}"
            )
        lengths = None
        if chunk_length_s:
            lengths = chunk_lengths(chunk_length_s, stride_length_s, self.processor.sampling_rate, self.frame_samples)
        return [self._answer(*numbered, lengths, batches, return_timestamps) for numbered in enumerate(items)]

    @property
    def frame_samples(self) -> int:
        """Samples from one frame of the logits to the next: transformers' ``inputs_to_logits_ratio``."""
        config = self.files.config
        if "feature_projection_input_dim" in config:  # wav2vec2-bert counts so
            ratio = 2 * int(config["feature_projection_input_dim"])
            if config.get("add_adapter"):
                ratio *= int(config.get("adapter_stride", 2)) ** int(config.get("num_adapter_layers", 1))
            return ratio
        return math.prod(config.get("conv_stride", STRIDES))

    def _answer(
        self, number: int, item: Any, lengths: ChunkLengths | None, batches: Batches, timestamps: bool | str | None
    ) -> dict[str, Any]:
        (samples,) = self.processor.read([item], first=number)
        chunks: list[tuple[Sound, Stride | None]] = [
            (samples, stride_of(item, len(samples), self.processor.sampling_rate))
        ]
        if lengths is not None:
            chunks = [*lengths.cut(samples)]
        logits = self.logits([chunk for chunk, _ in chunks], batches)
        ids = [
            self._without_context(logits_FV.argmax(-1), stride)
            for logits_FV, (_, stride) in zip(logits, chunks, strict=True)
        ]
        characters = self.tokenizer.characters(np.concatenate(ids).tolist())
        answer: dict[str, Any] = {"text": self.tokenizer.text(characters)}
        if timestamps:
            spans = characters if timestamps == "char" else self.tokenizer.words(characters)
            answer["chunks"] = [self._timed(span) for span in spans]
        return answer | {key: [value] * len(chunks) for key, value in extra_of(item).items()}

    def _without_context(self, ids_F: NDArray[np.int64], stride: Stride | None) -> NDArray[np.int64]:
        """The frames of a chunk that are no context."""
        if stride is None:
            return ids_F
        frames = stride.over(self.frame_samples)
        return ids_F[frames.left : frames.length - frames.right]

    def _timed(self, span: Span) -> dict[str, Any]:
        start, end = (frame * self.frame_samples / self.processor.sampling_rate for frame in (span.start, span.end))
        return {"text": span.text, "timestamp": (start, end)}


def stride_of(item: Any, samples: int, rate: int) -> Stride | None:
    """The context that a dictionary says its sound has; ``samples`` of it at ``rate``."""
    if not isinstance(item, Mapping) or item.get("stride") is None:
        return None
    if not item.get("sampling_rate"):
        raise PosexportError("a dictionary with stride has no sampling_rate; give the rate that stride counts in")
    try:
        left, right = (round(side * (rate / item["sampling_rate"])) for side in item["stride"])
    except (TypeError, ValueError) as err:
        raise PosexportError(f"stride is {item['stride']!r}; give two numbers of samples, (left, right)") from err
    if min(left, right) < 0 or left + right > samples:
        raise PosexportError(f"stride {item['stride']!r} is longer than the sound, {samples} samples at {rate} Hz")
    return Stride(samples, left, right)


def extra_of(item: Any) -> dict[str, Any]:
    """The other keys of a sound's dictionary, which transformers' pipeline returns too."""
    if not isinstance(item, Mapping):
        return {}
    read = {"raw", "array", "sampling_rate", "stride"} | ({"path"} if item.get("raw") is None else set())
    return {key: value for key, value in item.items() if key not in read}
