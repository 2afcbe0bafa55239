"""A bundle's generation: its files, tokenizer and KV cache put together for `posexport.run.generate.loop`."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from posexport.base.sizes import multiple
from posexport.base.spec import EMBEDS, LOGITS, SEQUENCE
from posexport.base.targets.providers import PROVIDERS
from posexport.errors import PosexportError
from posexport.run.adapters import adapter_feeds
from posexport.run.bundle.manifest import Manifest
from posexport.run.cache import Cache, DecoderInterface, decoder_interface, refuse
from posexport.run.captured import SLOTS, CapturedSession
from posexport.run.chain import Chain
from posexport.run.generate.config import GenerationConfig, token_ids
from posexport.run.generate.file import Stated, read_stated
from posexport.run.generate.loop import Model, generate
from posexport.run.generate.resolve_options import resolve
from posexport.run.generate.result import Generation, GenerationRules, Piece
from posexport.run.given_embeddings import embeddings_input, read_embeddings
from posexport.run.kept_cache import KeptCache
from posexport.run.logits.processor import Setting
from posexport.run.prefill import recomputed_from
from posexport.run.requests import GenerationInputs, Readers, Request, read_request
from posexport.run.texts import TOKENIZER, Texts
from posexport.run.whisper import begin, check, timestamps, with_room
from posexport.run.wrapped_session import refusal

if TYPE_CHECKING:
    from posexport.run.pictures_in_prompts import PromptReader

#: the task of models whose prompts may hold pictures
IMAGE_TEXT = "image-text-to-text"
#: a KV cache for a number of rows and of tokens
MakeCache = Callable[[int, int], Cache]


@dataclass
class Keeper:
    """The cache of a conversation, from its first call on."""

    cache: KeptCache | None = None

    @property
    def computed(self) -> int:
        return 0 if self.cache is None else self.cache.computed


@dataclass
class Continuation:
    """Generates for a session.

    ``texts``, ``render``: its tokenizer and chat template, opened when needed; ``reader``: reads prompts with pictures.
    """

    directory: Path
    manifest: Manifest
    chain: Chain
    texts: Callable[[], Texts]
    render: Callable[..., str]
    reader: "Callable[[], PromptReader]"

    @functools.cached_property
    def stated(self) -> Stated:
        """What the bundle's files say of generation."""
        return read_stated(self.directory, self.manifest)

    def events(
        self,
        inputs: GenerationInputs,
        requested: GenerationConfig,
        *,
        streams: bool,
        keeper: Keeper | None = None,
    ) -> Iterator[Piece | Generation]:
        """The events of `posexport.run.generate.loop`. ``streams``: also yield pieces of text.

        ``keeper``: of a conversation, whose cache is kept for its next call.
        """
        manifest = self.manifest
        decoder = decoder_interface(manifest.inputs, manifest.outputs)
        if decoder is None:
            raise refuse(manifest.task, manifest.inputs, manifest.outputs)
        decoder = decoder.of(self.chain.needs([LOGITS, *decoder.present]))
        # options of the call and of the checkpoint
        options, followed = resolve(requested, self.stated)
        self._check_whisper(requested, inputs.decoder_prompts)
        request = self._request(inputs, decoder)
        chosen = adapter_feeds(manifest.inputs, inputs.adapter, len(request.ids), "prompts")
        if chosen and isinstance(self.chain.links[-1].session, CapturedSession):
            raise PosexportError("calls with an adapter are not captured as CUDA graphs; leave adapter or graph out")
        request = request.with_adapters(chosen)
        if keeper is not None:
            _check_keeps(manifest.task, options, texts_only=not decoder.fixed and request.pictures is None)
        # the KV cache; Whisper adds its prompt tokens, sampling repeats prompts
        make_cache: MakeCache = functools.partial(self._cache, decoder, request)
        if self.stated.whisper is not None:
            if inputs.decoder_prompts is None and self.stated.start is not None:
                make_cache, request = self._whisper(make_cache, request, options)
            options = with_room(self.stated.whisper, options, request.ids)
        if options.beams == 1 and options.sequences > 1:
            request = request.repeated(options.sequences)
            make_cache = functools.partial(self._cache, decoder, request)
        if keeper is not None:
            make_cache = functools.partial(self._kept, keeper, decoder, request)
        decode = None if request.texts is None else request.texts.decode
        model = Model(decoder, manifest.limits, manifest.layers, decode)
        rules = self._rules(options, request)
        events = generate(make_cache, model, request.ids, rules, row_ids=request.row_ids, streams=streams)
        return _explained(events, request, followed)

    def _request(self, inputs: GenerationInputs, decoder: DecoderInterface) -> Request:
        """Tokenized prompts with their pictures, or embeddings in their place, and the feeds of an encoder."""
        manifest, prompts, pictures = self.manifest, inputs.prompts, None
        if isinstance(prompts, Mapping) and EMBEDS in prompts:
            if inputs.images is not None or inputs.decoder_prompts is not None:
                raise PosexportError(f"{EMBEDS} are whole prompts; leave images and decoder_prompts out")
            ids, pictures = read_embeddings(prompts, embeddings_input(manifest.parts), manifest.limits)
            request = Request(ids=ids, texts=self.texts() if TOKENIZER in manifest.files else None, context=ids)
        else:
            render = functools.partial(self.render, **inputs.chat_template_kwargs)
            if inputs.images is not None or manifest.task == IMAGE_TEXT:
                prompts, pictures = replace(self.reader(), render=render).read(prompts, inputs.images)
            readers = Readers(
                texts=self.texts,
                has_tokenizer=TOKENIZER in manifest.files,
                render=render,
                start=lambda: self.stated.start,
                all_ids=self.stated.whisper is not None,
            )
            request = read_request(prompts, inputs.decoder_prompts, decoder, manifest.limits, readers)
        return request if pictures is None else request.with_pictures(pictures)

    def _check_whisper(self, requested: GenerationConfig, decoder_prompts: Sequence[Any] | None) -> None:
        """Raise PosexportError for Whisper options that do not apply to the model or the call."""
        named = [name for name in ("language", "task", "return_timestamps") if getattr(requested, name)]
        if self.stated.whisper is not None:
            check(self.stated.whisper, requested)
            if decoder_prompts is not None and (words := [name for name in named if name != "return_timestamps"]):
                raise PosexportError(f"{words[0]} and decoder_prompts both begin the answer; give one of them")
        elif named:
            raise PosexportError(
                f"{named[0]} is an option of Whisper, and this bundle is none; a translator's language is "
                "forced_bos_token_id or decoder_prompts"
            )

    def _whisper(self, make_cache: MakeCache, request: Request, options: GenerationConfig) -> tuple[MakeCache, Request]:
        """The request with Whisper's first tokens; where a language is detected, the encoder has run then."""
        whisper, start = self.stated.whisper, self.stated.start
        assert whisper is not None
        assert start is not None
        rows = len(request.ids)
        opened: list[Cache] = []

        def detect(languages: Sequence[int]) -> list[int]:
            opened.append(make_cache(rows, 1))
            ids = np.full((rows, 1), start, np.int64)
            logits_BV = opened[0].read(ids, np.ones_like(ids))
            return [int(languages[place]) for place in logits_BV[:, languages].argmax(1)]

        def reopened(count: int, room: int) -> Cache:
            opened[0].reopen(count, room)
            return opened[0]

        request = replace(request, ids=begin(whisper, start, options, rows, detect))
        return (reopened if opened and options.sequences == 1 else make_cache), request

    def _rules(self, config: GenerationConfig, request: Request) -> GenerationRules:
        eos = self.stated.eos if config.eos_token_id is None else token_ids(config.eos_token_id)
        stops = list(config.stop_strings or ())
        special = {text: request.texts.special(text) for text in stops} if request.texts else {}
        return GenerationRules(
            config=config,
            stop_tokens=frozenset(eos) | {token for token in special.values() if token is not None},
            stop_texts=tuple(text for text in stops if special.get(text) is None),
            setting=Setting(
                eos=eos,
                context=request.context,
                beams=config.beams,
                timestamps=timestamps(self.stated.whisper, config, eos) if self.stated.whisper else None,
            ),
        )

    def _kept(self, keeper: Keeper, decoder: DecoderInterface, request: Request, rows: int, room: int) -> Cache:
        """The conversation's cache, with what it has of the only prompt."""
        (prompt,) = request.ids
        assert rows == 1
        if keeper.cache is None:
            fixed, provider = dict(request.encoder_feeds), self._provider
            keeper.cache = KeptCache(self.chain, decoder, room=room, fixed=fixed, provider=provider)
        manifest = self.manifest
        keeper.cache.begin(
            prompt, room, threshold=recomputed_from(manifest.layers), at_once=manifest.limits.length_dependent
        )
        return keeper.cache

    @property
    def _provider(self) -> str:
        return next(known.name for known in PROVIDERS.values() if known.ort_name == self.chain.providers[0])

    def _cache(self, decoder: DecoderInterface, request: Request, rows: int, room: int) -> Cache:
        if isinstance(self.chain.links[-1].session, CapturedSession):
            limits, room = self.manifest.limits, multiple(room, SLOTS)
            if limits.max_length is not None and SEQUENCE in limits.limited_axes:
                room = min(room, limits.max_length)
        fixed, pictures = dict(request.encoder_feeds), request.pictures
        return Cache(self.chain, decoder, rows=rows, room=room, fixed=fixed, provider=self._provider, pictures=pictures)


def _check_keeps(task: str, options: GenerationConfig, *, texts_only: bool) -> None:
    """PosexportError for a call whose cache is not kept."""
    if not texts_only:
        raise PosexportError(
            f"a chat keeps the cache of texts, and this bundle is for {task}, with an encoder or pictures; use generate"
        )
    if options.beams > 1 or options.sequences > 1:
        raise PosexportError("a chat has one answer to a prompt; give num_beams=1 and num_return_sequences=1")


def _explained(
    events: Iterator[Piece | Generation], request: Request, followed: Mapping[str, Any]
) -> Iterator[Piece | Generation]:
    """``events``, with what the encoder read counted among the prompts' tokens, and refusals in a sentence."""
    try:
        for event in events:
            if isinstance(event, Generation):
                count = event.prompt_tokens + request.encoder_tokens
                event = replace(event, prompt_tokens=count, followed=followed)
            yield event
    except PosexportError:
        raise
    except Exception as err:
        if reason := refusal(err):
            prompts = f"{len(request.ids)} prompts of up to {max(map(len, request.ids))} tokens"
            raise PosexportError(f"the bundle stopped at {prompts}: {reason}") from err
        raise
