"""An open bundle: run it, tokenize, generate, prepare pictures and sound."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import CARRIED, EMBEDS, NUM_LOGITS, InputSpec, OutputSpec, carried
from posexport.base.system.freed_memory import trim
from posexport.base.targets.providers import PROVIDERS
from posexport.errors import PosexportError
from posexport.run.adapters import AdapterNames, adapter_feeds, names_of
from posexport.run.bundle.manifest import Manifest
from posexport.run.call_forms import as_texts
from posexport.run.chain import Chain
from posexport.run.chat import Chat, Message
from posexport.run.conversation import Conversation
from posexport.run.feeds import number_of_logits, prepare
from posexport.run.generate.config import GenerationConfig
from posexport.run.generate.loop import drain
from posexport.run.generate.result import Generation, Piece, Streamer
from posexport.run.generate.session import Continuation
from posexport.run.given_embeddings import embeddings_input, prompts_or_embeddings
from posexport.run.preparation import Processor, open_processor
from posexport.run.requests import GenerationInputs, Prompts
from posexport.run.scores import ScoreMethods
from posexport.run.texts import Texts
from posexport.run.wrapped_session import MemoryPolicy, refusal

if TYPE_CHECKING:
    from posexport.proof.sample.check import SelfCheck
    from posexport.run.pictures_in_prompts import PromptReader


class Session(ScoreMethods):
    """An open bundle, made by `load`. Threads may share it: calls change no state."""

    def __init__(self, directory: Path, manifest: Manifest, chain: Chain, memory: MemoryPolicy | None = None) -> None:
        self._directory = self.directory = directory
        self._manifest = manifest
        self._chain = chain
        self._memory = memory or MemoryPolicy()

    def __reduce__(self) -> NoReturn:
        raise PosexportError(
            "a session cannot be pickled or copied; give other processes the path of the bundle and load it there: "
            f"posexport.load({str(self._directory)!r})"
        )

    def __repr__(self) -> str:
        """Inputs, outputs, and the longest input."""
        inputs = ", ".join(f"{spec.name} {_sizes(spec)}" for spec in self.inputs if spec.role not in CARRIED)
        cache = " and a KV cache" if any(spec.role == "cache" for spec in self.inputs) else ""
        if any(spec.role == "state" for spec in self.inputs):
            cache += " and states between tokens"
        presents = carried(self.inputs, self.outputs)
        outputs = ", ".join(f"{spec.name} {_sizes(spec)}" for spec in self.outputs if spec not in presents)
        limit = self._manifest.limits.max_length
        longest = "any length" if limit is None else f"at most {limit} tokens"
        provider = self.providers[0].removesuffix("ExecutionProvider").lower()
        return (
            f"<posexport.Session {self._directory.name}: {self._manifest.task} on {provider}, {longest}; "
            f"takes {inputs}{cache}; gives {outputs}>"
        )

    @property
    def manifest(self) -> Manifest:
        """The description of the bundle: inputs, outputs, limits, recipe, verdict."""
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
    def adapters(self) -> list[str]:
        """The names of the LoRA adapters; empty: the bundle has none."""
        return names_of(self.inputs)

    @property
    def providers(self) -> list[str]:
        """ONNX Runtime's execution providers of this session, in their order of preference."""
        return self._chain.providers

    def run(self, inputs: Mapping[str, Any], *, outputs: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """The outputs (all, or those named) for arrays or nested lists by input name.

        ``attention_mask`` may be left out (no padding), ``token_type_ids`` (all 0), a decoder's cache (no past tokens),
        and inputs that only other outputs depend on. Outputs of an earlier graph may be inputs (the features of an
        image for many prompts): that graph does not run again. A decoder's ``num_logits_to_keep`` is the number of last
        tokens whose logits are computed; 0, the default, is all.

        Raises:
            PosexportError: inputs that the bundle does not accept, for example one over its limit; see
                `posexport.run.feeds.prepare`.
        """
        names = self._chosen(outputs)
        computed = {name: np.asarray(inputs[name]) for name in self._chain.outputs & inputs.keys()}
        embeddings = [embeddings_input(self._manifest.parts)] if EMBEDS in computed else []
        needed = self._chain.needs(names, computed)
        ids = [spec.name for spec in self.inputs if spec.role == "tokens" and spec.name in inputs.keys() - needed]
        if embeddings and ids:
            raise PosexportError(f"run takes either {ids[0]} or {EMBEDS}; give one of them")
        number = {NUM_LOGITS: number_of_logits(inputs[NUM_LOGITS])} if NUM_LOGITS in inputs.keys() & needed else {}
        computed.pop(EMBEDS, None)
        inputs = {name: value for name, value in inputs.items() if name not in computed and name not in number}
        specs = [*embeddings, *(spec for spec in self.inputs if spec.name in needed or spec.name in inputs)]
        feeds = {**prepare(inputs, specs, self._manifest.limits), **computed, **number}
        options = self._memory.options(
            feeds[spec.name] for spec in specs if spec.role not in CARRIED and spec.name in feeds
        )
        try:
            values = self._chain.run(names, feeds, options)
        except Exception as err:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
            if reason := refusal(err):
                raise PosexportError(f"the bundle refuses {shapes}: {reason}") from err
            raise
        if options is not None:
            trim()
        return dict(zip(names, values, strict=True))

    def self_check(self) -> "SelfCheck":
        """Run the bundle's stored sample on this session and compare the outputs.

        Returns:
            a report that is true if all outputs are right; ``failure_location`` names the first wrong node group.

        Raises:
            PosexportError: a bundle without a sample.
        """
        from posexport.proof.sample.check import self_check

        return self_check(self._directory, self._manifest, self._chain, self._provider)

    def prepare(self, *, images: Any = None, audio: Any = None, **options: Any) -> dict[str, NDArray[Any]]:
        """The arrays for `run` from pictures or sounds, by the checkpoint's image processor or feature extractor.

        Args:
            images: one picture or a list: paths, bytes, ``PIL.Image``, arrays [H, W, C] (`posexport.run.images`).
            audio: one sound or a list: paths of WAV or FLAC files, arrays of samples (`posexport.run.audio`).
            options: options of the processor, for example ``sampling_rate`` for arrays of samples.

        Raises:
            PosexportError: both or neither, a bundle without this input, or a file that cannot be read.
        """
        kinds = {kind: value for kind, value in (("images", images), ("audio", audio)) if value is not None}
        if len(kinds) != 1:
            raise PosexportError("prepare takes either images or audio; give one of them")
        ((kind, value),) = kinds.items()
        return self._processor(kind)(value, **options)

    def tokenize(self, texts: Iterable[str], *, truncate: bool = False) -> dict[str, NDArray[np.int64]]:
        """Token ids of texts, padded to the longest, with attention mask and token types: the input of `run`.

        The tokenizer decides special tokens, padding side and padding id. A text over the limit is an error unless
        ``truncate``.

        Raises:
            PosexportError: a bundle without a tokenizer, or a text over the limit.
        """
        return self._texts.tokenize(texts if isinstance(texts, str) else as_texts(texts)[0], truncate=truncate)

    def embed_tokens(self, ids: Any) -> NDArray[Any]:
        """The embeddings of ids [prompts, tokens], of a bundle with the graph ``embed_tokens.onnx``."""
        embeddings_input(self._manifest.parts)
        (tokens,) = (spec.name for spec in self.inputs if spec.role == "tokens")
        return self.run({tokens: ids}, outputs=[EMBEDS])[EMBEDS]

    def run_texts(
        self,
        texts: Iterable[str],
        *,
        truncate: bool = False,
        outputs: Sequence[str] | None = None,
        adapter: AdapterNames | None = None,
    ) -> dict[str, NDArray[Any]]:
        """The outputs for texts, in one batch: `tokenize`, then `run`; ``adapter``: see `generate`."""
        self._chosen(outputs)
        feeds = self.tokenize(texts, truncate=truncate)
        rows = len(next(iter(feeds.values())))
        return self.run({**feeds, **adapter_feeds(self.inputs, adapter, rows)}, outputs=outputs)

    def generate(
        self,
        prompts: Prompts | None = None,
        config: GenerationConfig | None = None,
        *,
        inputs_embeds: Any = None,
        images: Sequence[Any] | None = None,
        decoder_prompts: Sequence[str] | Sequence[Sequence[int]] | None = None,
        streamer: Streamer | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        adapter: AdapterNames | None = None,
        **options: Any,
    ) -> Generation:
        """Continue prompts in one batch: texts, lists of token ids, or lists of messages. Rows are independent.

        Args:
            prompts: a message has a ``role`` and ``content``; the bundle's chat template makes a prompt of each list of
                messages. For an encoder-decoder, the inputs of the encoder, or arrays by their names.
            inputs_embeds: in place of prompts, embeddings [prompts, tokens, channels] or a list of [tokens, channels];
                with an ``attention_mask`` of padding both are ``prompts`` by name.
            config: sampling and stopping (`posexport.GenerationConfig`); fields that are not set follow the bundle's
                generation_config.json, as in transformers' ``generate``.
            images: for each prompt the list of its pictures, as `prepare` takes them, in the order of the image tokens
                in its text, or of ``{"type": "image"}`` in its messages (which may hold the pictures too).
            decoder_prompts: for an encoder-decoder, texts or lists of ids with which completions begin, after the start
                token of the configuration; Whisper's lists include the start token.
            streamer: called with the row and each new piece of its text, or of a bundle without a tokenizer its new
                token.
            chat_template_kwargs: of `render_chat` for lists of messages: ``tools``, ``documents``, and variables of the
                template, such as ``{"enable_thinking": False}``.
            adapter: the name of a LoRA adapter (``--adapters``), or a list with one, or None, for each prompt.
            options: fields of the config by name; they go before ``config``.

        Raises:
            PosexportError: no decoder with a cache, an empty prompt, or one beyond the limit.

        Examples:
            >>> import posexport
            >>> done = posexport.convert("decoder-rope", "rope-decoder", settings={"layers": 1}, verify=False)
            >>> session = posexport.load("rope-decoder")
            >>> len(session.generate([[5, 2, 7], [9]], max_new_tokens=4).completions[1].tokens)
            4
        """
        given = prompts_or_embeddings(prompts, inputs_embeds)
        inputs = GenerationInputs.of(given, images, decoder_prompts, chat_template_kwargs, adapter)
        return drain(self._events(inputs, config, options, streams=streamer is not None), streamer)

    def stream(
        self,
        prompt: str | Sequence[int] | Sequence[Message] | None = None,
        config: GenerationConfig | None = None,
        *,
        inputs_embeds: Any = None,
        images: Sequence[Any] | None = None,
        decoder_prompt: str | Sequence[int] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        adapter: str | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """The completion of one prompt, piece by piece: ``for piece in session.stream("Once"): print(piece, end="")``.

        A piece has whole characters and no part of a stop string; of a bundle without a tokenizer it is a token id.
        ``inputs_embeds``: in place of the prompt, [tokens, channels]. ``images``: the pictures of the prompt. Arguments
        and errors: see `generate`.
        """
        decoder_prompts = None if decoder_prompt is None else [decoder_prompt]
        pictures = None if images is None else [images]
        prompts, embeds = (None if one is None else [one] for one in (prompt, inputs_embeds))
        given = prompts_or_embeddings(prompts, embeds)
        inputs = GenerationInputs.of(given, pictures, decoder_prompts, chat_template_kwargs, adapter)
        events = self._events(inputs, config, options, streams=True)
        return (event[1] for event in events if not isinstance(event, Generation))

    def chat(
        self,
        config: GenerationConfig | None = None,
        *,
        messages: Sequence[Message] = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
        adapter: str | None = None,
        **options: Any,
    ) -> Conversation:
        """A chat that keeps its KV cache between turns: ``session.chat().send("Who wrote Faust?").text``.

        Tokens equal those of `generate` on the whole prompt of each turn.

        Args:
            config: see `generate`, like ``chat_template_kwargs`` and ``options``.
            messages: of the chat before its first turn, for example of the system.
            chat_template_kwargs: see `generate`.
            adapter: the name of a LoRA adapter, the same in all turns.
            options: see `generate`.
        """
        config = (config or GenerationConfig()).changed(options)
        return Conversation(self._continuation, config, messages, chat_template_kwargs, adapter)

    def _events(
        self, inputs: GenerationInputs, config: GenerationConfig | None, options: dict[str, Any], *, streams: bool
    ) -> Iterator[Piece | Generation]:
        return self._continuation.events(inputs, (config or GenerationConfig()).changed(options), streams=streams)

    @functools.cached_property
    def _continuation(self) -> Continuation:
        return Continuation(
            self._directory, self._manifest, self._chain, lambda: self._texts, self.render_chat, self._picture_reader
        )

    def _picture_reader(self) -> "PromptReader":
        from posexport.run.pages import FEATURES
        from posexport.run.pictures_in_prompts import PromptReader  # few bundles need it

        return PromptReader(
            rules=self._manifest.picture_rules,
            inputs=self.inputs,
            prepare=lambda pictures, **settings: self.prepare(images=pictures, all_arrays=True, **settings),
            run=lambda arrays: self.run(arrays, outputs=[FEATURES]),
            texts=lambda: self._texts,
            render=self.render_chat,
        )

    @property
    def _provider(self) -> str:
        return next(record.name for record in PROVIDERS.values() if record.ort_name == self.providers[0])

    def render_chat(self, messages: Sequence[Message], **options: Any) -> str:
        """The prompt of messages by the bundle's chat template, with special tokens and the generation prompt.

        ``options``: ``add_generation_prompt``, ``tools`` (functions or JSON schemas), ``documents``, variables of the
        template, and ``chat_template``: the name of one, of a bundle with several.

        Raises:
            PosexportError: a bundle without a template, or messages that the template refuses.
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
