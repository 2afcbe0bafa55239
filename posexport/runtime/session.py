"""A bundle that is open: checked files, checked model, checked inputs."""

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.bounds import CACHE_FULL, MASK_MISFIT, POSITION_BEYOND
from posexport.bundle.manifest import MODEL, Manifest, model_of
from posexport.bundle.read import check_hashes, locate, read
from posexport.errors import PosexportError
from posexport.runtime.cache import Cache, ports, refuse
from posexport.runtime.chain import Chain, open_chain, taken
from posexport.runtime.chat import Chat, Message, as_chats
from posexport.runtime.feeds import prepare
from posexport.runtime.generate import Generation, Plan, Stream, as_ids, generate, unique
from posexport.runtime.providers import PROVIDERS, bundle_session
from posexport.runtime.sampling import Sampling
from posexport.runtime.seq2seq import decoder_prompts as begin
from posexport.runtime.seq2seq import encoder_feeds, keys_of, read_tokens, rows_of
from posexport.runtime.texts import TOKENIZER, Texts, banned_tokens, end_tokens, start_token
from posexport.spec import InputSpec, OutputSpec, PartSpec

_DTYPES = {"tensor(int64)": "int64", "tensor(float)": "float32"}


def load(
    directory: str | os.PathLike[str], *, provider: str = "cpu", threads: int = 0, check: bool = True
) -> "Session":
    """Open the bundle in ``directory`` on ``provider`` (``cpu`` or ``cuda``).

    ``threads``: of one operator (0: ONNX Runtime decides). ``check``: compare every file with its sha256 first. Numbers
    below 1.2e-38 are taken as 0 (`make_session`, ``denormals``).

    Raises PosexportError if it is not a bundle, if a file is missing or altered, if the provider does not load, or if
    the model is not the one that the manifest describes.
    """
    path = Path(directory)
    manifest = read(path)
    if check:
        check_hashes(path, manifest)
    graphs: dict[str, Manifest | PartSpec] = {part.file: part for part in manifest.parts} or {MODEL: manifest}
    for file in graphs:
        locate(path, file)
    make = functools.partial(bundle_session, provider=provider, threads=threads)
    chain = open_chain(model_of(path, manifest.parts), manifest.parts, make)
    for link, (file, graph) in zip(chain.links, graphs.items(), strict=True):
        given, found = taken(link.session), link.session.get_outputs()
        _compare(file, "inputs", [_input(spec) for spec in graph.inputs], [_found(arg, True) for arg in given])
        _compare(file, "outputs", [_output(spec) for spec in graph.outputs], [_found(arg, False) for arg in found])
    return Session(path, manifest, chain)


class Session:
    """An open bundle; made by `load`. Not changed by use: threads may share it."""

    def __init__(self, directory: Path, manifest: Manifest, chain: Chain) -> None:
        self._directory = directory
        self._manifest = manifest
        self._chain = chain

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
        feeds = prepare(inputs, specs, self._manifest.envelope)
        try:
            values = self._chain.run(names, feeds)
        except Exception as err:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
            if reason := refusal(err):
                raise PosexportError(f"the bundle refuses {shapes}: {reason}") from err
            raise
        return dict(zip(names, values, strict=True))

    def tokenize(self, texts: Sequence[str], *, truncate: bool = False) -> dict[str, NDArray[np.int64]]:
        """The arrays that `encode` runs: texts as token ids, padded to the longest, with mask and types.

        Special tokens, padding side and padding id are the tokenizer's. A text over the limit is an error unless
        ``truncate``. Raises PosexportError if the bundle has no tokenizer.
        """
        return self._texts.tokenize(texts, truncate=truncate)

    def encode(
        self, texts: Sequence[str], *, truncate: bool = False, outputs: Sequence[str] | None = None
    ) -> dict[str, NDArray[Any]]:
        """The outputs for texts: `tokenize`, then `run`."""
        self._chosen(outputs)
        return self.run(self.tokenize(texts, truncate=truncate), outputs=outputs)

    def generate(
        self,
        prompts: Sequence[str] | Sequence[Sequence[int]] | Sequence[Sequence[Message]] | Mapping[str, Any],
        *,
        decoder_prompts: Sequence[str] | Sequence[Sequence[int]] | None = None,
        max_new_tokens: int = 64,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        stop_tokens: Sequence[int] | None = None,
        chunk: int | None = None,
        recompute: bool = True,
        stream: Stream | None = None,
    ) -> Generation:
        """Continue prompts: texts, lists of token ids, or lists of messages; the best token each time, or sampled ones.

        A message has a ``role`` and ``content``; the bundle's chat template makes a prompt of every list of them, and
        the answer is the completion (`posexport.runtime.chat`).

        Tokens are sampled where one of ``temperature``, ``top_k`` and ``top_p`` is given (`Sampling`): the same for the
        same ``seed``, prompt and options, whatever other prompts are in the batch; prompts that are equal differ.
        ``stop``: texts that end a completion, as the tokens do that config.json names, or ``stop_tokens``. ``chunk``:
        read prompts so many tokens at a time, which takes less memory. ``recompute`` False refuses what a longrope
        model would have to read again. ``stream`` is called with the row and each new piece of its text.

        Of an encoder-decoder ``prompts`` are what the encoder reads, once, or arrays by the names of its inputs; the
        decoder begins with the token that config.json names, and with ``decoder_prompts`` behind it, which are texts,
        or lists of ids that begin with theirs.

        Raises PosexportError for what cannot be continued: no decoder with a cache, an empty prompt, one beyond the
        limit.
        """
        of = ports(self.inputs, self.outputs)
        if of is None:
            raise refuse(self._manifest.task, self.inputs, self.outputs)
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        if isinstance(prompts, str) or isinstance(stop, str):
            raise PosexportError("prompts and stop must be lists of texts, got one text; give [text]")
        if (chats := as_chats(prompts)) is not None:
            if of.fixed:
                raise PosexportError("lists of messages are for decoders; this bundle has an encoder: give texts")
            prompts = [self._texts.pieces(self.render_chat(chat)) for chat in chats]
        as_texts = bool(prompts) and all(isinstance(prompt, str) for prompt in prompts)
        as_texts = as_texts and not isinstance(prompts, Mapping)
        texts = self._texts if as_texts or TOKENIZER in self._manifest.files else None
        fixed: dict[str, NDArray[Any]] = {}
        if of.fixed:
            fixed = encoder_feeds(prompts, of.fixed, self._manifest.envelope, texts)
            start = start_token(self._directory, self._manifest)
            ids = begin(decoder_prompts, rows_of(fixed), of.tokens, start, texts)
        elif decoder_prompts is not None or isinstance(prompts, Mapping):
            raise PosexportError("this bundle is a decoder alone; give prompts as texts or ids, and no decoder_prompts")
        else:
            ids = texts.prompts(prompts) if as_texts and texts else as_ids(prompts, of.tokens)  # type: ignore[arg-type]
        ends = unique(end_tokens(self._directory, self._manifest) if stop_tokens is None else stop_tokens)
        special = {text: texts.special(text) for text in stop} if texts else {}
        plan = Plan(
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stop_tokens=ends | {number for number in special.values() if number is not None},
            stop_texts=tuple(text for text in stop if special.get(text) is None),
            chunk=chunk,
            recompute=recompute,
            banned=banned_tokens(self._directory, self._manifest),
        )
        provider = next(name for name, full in PROVIDERS.items() if full == self.providers[0])

        def cache(rows: int, room: int) -> Cache:
            return Cache(self._chain, of, rows=rows, room=room, fixed=fixed, provider=provider)

        try:
            decode: Callable[[Sequence[int]], str] | None = None if texts is None else texts.decode
            made = generate(
                cache,
                of,
                self._manifest.envelope,
                ids,
                plan,
                keys=keys_of(fixed, of.fixed) if fixed else None,
                encodings=self._manifest.layers,
                decode=decode,
                stream=stream,
            )
            return replace(made, prompt_tokens=made.prompt_tokens + read_tokens(fixed, of.fixed))
        except PosexportError:
            raise
        except Exception as err:
            if reason := refusal(err):
                raise PosexportError(
                    f"the bundle stopped at {len(ids)} prompts of up to {max(map(len, ids))} tokens: {reason}"
                ) from err
            raise

    def render_chat(self, messages: Sequence[Message]) -> str:
        """The prompt that the bundle's chat template makes of messages, special tokens and the answer's start included.

        Raises PosexportError if the bundle has no template, or its template refuses the messages.
        """
        return self._chat.render(messages)

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


def refusal(err: Exception) -> str | None:
    """Why a run failed, if it is something the caller can mend: the length guard's words, or too little memory."""
    text = str(err)
    if found := re.search(r"Name:'([^']*(?:long|short)er than \d+ (?:positions|pixels))[^']*'", text):
        return found[1]
    if found := re.search(rf"Name:'({MASK_MISFIT}|{CACHE_FULL}|{POSITION_BEYOND} \d+)'", text):
        return found[1]
    if re.search(r"Failed to allocate memory|bad_alloc|CUDA out of memory|CUDA failure 2:", text):
        return "there is not enough memory for it; use a smaller batch or a shorter input"
    return None


def _input(spec: InputSpec) -> str:
    return f"{spec.name} {spec.dtype} {spec.axes}"


def _output(spec: OutputSpec) -> str:
    return f"{spec.name} {spec.axes}"


def _found(arg: Any, is_input: bool) -> str:
    dtype = f"{_DTYPES.get(arg.type, arg.type)} " if is_input else ""
    return f"{arg.name} {dtype}{list(arg.shape)}"


def _compare(file: str, kind: str, said: list[str], found: list[str]) -> None:
    if said != found:
        raise PosexportError(
            f"{file} has the {kind} {'; '.join(found)}, the manifest says {'; '.join(said)}: convert the bundle again"
        )
