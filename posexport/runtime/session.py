"""A bundle that is open: checked files, checked model, checked inputs."""

import functools
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from posexport.bundle.manifest import Manifest
from posexport.errors import PosexportError
from posexport.runtime.chain import Chain
from posexport.runtime.chat import Chat, Message
from posexport.runtime.continuation import Continuation
from posexport.runtime.feeds import prepare
from posexport.runtime.generate import drain
from posexport.runtime.generation import Generation, Piece, Streamer
from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.memory import Kept
from posexport.runtime.preparation import Processor, open_processor
from posexport.runtime.refusal import refusal
from posexport.runtime.requests import Prompts
from posexport.runtime.scores import ScoreMethods
from posexport.runtime.texts import Texts
from posexport.spec import PRESENT, InputSpec, OutputSpec
from posexport.targets.providers import PROVIDERS

if TYPE_CHECKING:
    from posexport.parity.sample.check import SelfCheck


class Session(ScoreMethods):
    """An open bundle; made by `load`. Not changed by use: threads may share it."""

    def __init__(self, directory: Path, manifest: Manifest, chain: Chain, kept: Kept | None = None) -> None:
        self._directory = self.directory = directory
        self._manifest = manifest
        self._chain = chain
        self._kept = kept or Kept()

    def __reduce__(self) -> NoReturn:
        raise PosexportError(
            "a session cannot be pickled or copied; give other processes the path of the bundle and load it there: "
            f"posexport.load({str(self._directory)!r})"
        )

    def __repr__(self) -> str:
        """What it takes and gives, and how long an input may be."""
        inputs = ", ".join(f"{spec.name} {_sizes(spec)}" for spec in self.inputs if spec.role != "cache")
        cache = " and a KV cache" if any(spec.role == "cache" for spec in self.inputs) else ""
        outputs = ", ".join(f"{spec.name} {_sizes(spec)}" for spec in self.outputs if not set(PRESENT) & set(spec.axes))
        limit = self._manifest.limits.max_length
        longest = "any length" if limit is None else f"at most {limit} tokens"
        provider = self.providers[0].removesuffix("ExecutionProvider").lower()
        return (
            f"<posexport.Session {self._directory.name}: {self._manifest.task} on {provider}, {longest}; "
            f"takes {inputs}{cache}; gives {outputs}>"
        )

    @property
    def manifest(self) -> Manifest:
        """What the bundle is and was proven to do."""
        return self._manifest

    @property
    def inputs(self) -> list[InputSpec]:
        """The inputs, in the model's order."""
        return self._manifest.inputs

    @property
    def outputs(self) -> list[OutputSpec]:
        """The outputs, in the model's order."""
        return self._manifest.outputs

    @property
    def providers(self) -> list[str]:
        """ONNX Runtime's execution providers of this session, the one asked for first."""
        return self._chain.providers

    def run(self, inputs: Mapping[str, Any], *, outputs: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """The outputs (all, or those named) for arrays or nested lists by input name.

        ``attention_mask`` may be left out (every token counts), ``token_type_ids`` too (all 0), and a decoder's cache
        (no tokens before); of an encoder-decoder also what only other outputs depend on. Raises PosexportError for
        inputs that the bundle does not take, such as one over its limit; see `posexport.runtime.feeds.prepare`.
        """
        names = self._chosen(outputs)
        needed = self._chain.needs(names)
        specs = [spec for spec in self.inputs if spec.name in needed or spec.name in inputs]
        feeds = prepare(inputs, specs, self._manifest.limits)
        options = self._kept.options(feeds[spec.name] for spec in specs if spec.role != "cache" and spec.name in feeds)
        try:
            values = self._chain.run(names, feeds, options)
        except Exception as err:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
            if reason := refusal(err):
                raise PosexportError(f"the bundle refuses {shapes}: {reason}") from err
            raise
        if options is not None:
            self._kept.trim()
        return dict(zip(names, values, strict=True))

    def self_check(self) -> "SelfCheck":
        """Whether this session gives the right answers here: those of the sample that the bundle carries.

        A report, true where they are right; ``failure_location`` names the first part of the graph that is not.
        Raises PosexportError for a bundle without a sample.
        """
        check = importlib.import_module("posexport.parity.sample.check")  # it stands on this package
        report: SelfCheck = check.self_check(self._directory, self._manifest, self._chain, self._provider)
        return report

    def prepare(self, *, images: Any = None, audio: Any = None, **options: Any) -> dict[str, NDArray[Any]]:
        """The arrays that `run` takes for pictures or for sounds, as the checkpoint's own processor prepares them.

        Args:
            images: one picture or a list: paths, bytes, ``PIL.Image``, arrays [H, W, C] (`posexport.images`).
            audio: one sound or a list: paths of WAV or FLAC files, arrays of samples (`posexport.audio`).
            options: of that processor, such as ``sampling_rate`` for arrays of samples.

        Raises:
            PosexportError: not exactly one of both, a bundle that takes no such input, or a file that is none.
        """
        kinds = {kind: value for kind, value in (("images", images), ("audio", audio)) if value is not None}
        if len(kinds) != 1:
            raise PosexportError("prepare takes either images or audio; give one of them")
        ((kind, value),) = kinds.items()
        return self._processor(kind)(value, **options)

    def tokenize(self, texts: Sequence[str], *, truncate: bool = False) -> dict[str, NDArray[np.int64]]:
        """The arrays that `run_texts` runs: texts as token ids, padded to the longest, with mask and types.

        Special tokens, padding side and padding id are the tokenizer's. A text over the limit is an error unless
        ``truncate``. Raises PosexportError if the bundle has no tokenizer.
        """
        return self._texts.tokenize(texts, truncate=truncate)

    def run_texts(
        self, texts: Sequence[str], *, truncate: bool = False, outputs: Sequence[str] | None = None
    ) -> dict[str, NDArray[Any]]:
        """The outputs for texts, in one batch: `tokenize`, then `run`."""
        self._chosen(outputs)
        return self.run(self.tokenize(texts, truncate=truncate), outputs=outputs)

    def generate(
        self,
        prompts: Prompts,
        config: GenerationConfig | None = None,
        *,
        decoder_prompts: Sequence[str] | Sequence[Sequence[int]] | None = None,
        streamer: Streamer | None = None,
        **options: Any,
    ) -> Generation:
        """Continue prompts: texts, lists of token ids, or lists of messages, all at once, each as if it were alone.

        Args:
            prompts: a message has a ``role`` and ``content``; the bundle's chat template makes a prompt of every list
                of them, and the completion is the answer. Of an encoder-decoder: what the encoder reads, once, or
                arrays by the names of its inputs.
            config: how tokens are chosen and when to stop (`posexport.GenerationConfig`); what it does not set is as
                the bundle's generation_config.json says, as in transformers' ``generate``.
            decoder_prompts: of an encoder-decoder, what answers begin with, behind the token that the configuration
                names: texts, or lists of ids, which of Whisper are all there is.
            streamer: called with the row and each new piece of its text.
            options: fields of the config by name, in place of its own.

        Raises:
            PosexportError: what cannot be continued: no decoder with a cache, an empty prompt, one beyond the limit.

        Examples:
            >>> import posexport
            >>> done = posexport.convert("decoder-rope", "rope-decoder", settings={"layers": 1}, verify=False)
            >>> session = posexport.load("rope-decoder")
            >>> len(session.generate([[5, 2, 7], [9]], max_new_tokens=4).completions[1].tokens)
            4
        """
        return drain(self._events(prompts, config, decoder_prompts, options, texts=streamer is not None), streamer)

    def stream(
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        config: GenerationConfig | None = None,
        *,
        decoder_prompt: str | Sequence[int] | None = None,
        **options: Any,
    ) -> Iterator[str]:
        """The completion of one prompt, piece by piece: ``for piece in session.stream("Once"): print(piece, end="")``.

        A piece holds whole characters and nothing of a stop string. Arguments and errors are those of `generate`.
        """
        begun = None if decoder_prompt is None else [decoder_prompt]
        events = self._events([prompt], config, begun, options, texts=True)
        return (event[1] for event in events if not isinstance(event, Generation))

    def _events(
        self,
        prompts: Any,
        config: GenerationConfig | None,
        decoder_prompts: Any,
        options: dict[str, Any],
        *,
        texts: bool,
    ) -> Iterator[Piece | Generation]:
        asked = (config or GenerationConfig()).changed(options)
        return self._continuation.events(prompts, asked, decoder_prompts, texts=texts)

    @functools.cached_property
    def _continuation(self) -> Continuation:
        return Continuation(self._directory, self._manifest, self._chain, lambda: self._texts, self.render_chat)

    @property
    def _provider(self) -> str:
        return next(each.name for each in PROVIDERS.values() if each.ort_name == self.providers[0])

    def render_chat(self, messages: Sequence[Message], **options: Any) -> str:
        """The prompt that the bundle's chat template makes of messages, special tokens and the answer's start included.

        ``options``: ``add_generation_prompt``, ``tools`` and ``documents``, which the template is told.
        Raises PosexportError if the bundle has no template, or its template refuses the messages.
        """
        return self._chat.render(messages, **options)

    def _processor(self, kind: str) -> Processor:
        if kind not in self._processors:
            self._processors[kind] = open_processor(kind, self._directory, self._manifest)
        return self._processors[kind]

    @functools.cached_property
    def _processors(self) -> dict[str, Processor]:
        return {}

    @functools.cached_property
    def _chat(self) -> Chat:
        return Chat(self._directory, self._manifest)

    @functools.cached_property
    def _texts(self) -> Texts:
        return Texts(self._directory, self._manifest)

    def _chosen(self, outputs: Sequence[str] | None) -> list[str]:
        known = [spec.name for spec in self.outputs]
        chosen = known if outputs is None else list(dict.fromkeys(outputs))
        if unknown := [name for name in chosen if name not in known]:
            raise PosexportError(f"unknown output {', '.join(unknown)}; this bundle gives {', '.join(known)}")
        return chosen or known


def _sizes(spec: InputSpec | OutputSpec) -> str:
    return f"[{', '.join(map(str, spec.axes))}]"
