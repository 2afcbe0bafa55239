"""A bundle for a serving engine: requests are validated one by one, computed in batches, and fail one by one."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.targets.providers import DEFAULT_PROVIDER
from posexport.errors import PosexportError
from posexport.run.batches import BATCH_TOKENS, Batches
from posexport.run.bundle.manifest import Manifest
from posexport.run.bundle.read import read
from posexport.run.embed import EMBEDDING
from posexport.run.load import load
from posexport.run.texts import check_texts
from posexport.serve.engines.fit import check_provider, embeds_texts

#: characters of one request: more would keep the tokenizer busy for seconds, to be cut or refused anyway
REQUEST_CHARACTERS = 1_000_000

Outputs = dict[str, NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Request:
    """A validated request of a client: texts with the number of tokens of each, or arrays by input name.

    Attributes:
        texts: texts to encode; empty if ``inputs`` is not None.
        lengths: the number of tokens of each text.
        prompt_name: the bundle's prompt that is put before each text.
        inputs: arrays for `Session.run`.
        tokens: the request's share of a budget of tokens.
    """

    tokens: int
    texts: Sequence[str] = ()
    lengths: Sequence[int] = ()
    prompt_name: str | None = None
    inputs: Mapping[str, Any] | None = None


class Service:
    """An open bundle with the limits of a deployment. Thread-safe."""

    def __init__(
        self,
        bundle: str | Path,
        *,
        provider: str = DEFAULT_PROVIDER,
        threads: int = 0,
        batch_tokens: int = BATCH_TOKENS,
        request_characters: int = REQUEST_CHARACTERS,
        provider_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Open ``bundle``; PosexportError for what `posexport.load` refuses, and for a bundle of another provider."""
        for name, value in (("batch_tokens", batch_tokens), ("request_characters", request_characters)):
            if value < 1:
                raise PosexportError(f"{name} must be at least 1, got {value}")
        check_provider(read(Path(bundle)), provider)
        self._session = load(bundle, provider=provider, threads=threads, provider_options=provider_options)
        self.batch_tokens = batch_tokens
        self._max_characters = request_characters

    @property
    def manifest(self) -> Manifest:
        return self._session.manifest

    @property
    def takes_texts(self) -> bool:
        """Whether requests are texts, and responses vectors; a bundle for another task takes arrays."""
        return embeds_texts(self.manifest)

    def texts(self, texts: Any, prompt_name: str | None = None) -> Request:
        """A request to encode texts; PosexportError for texts that the bundle cannot encode, e.g. too long ones."""
        if not self.takes_texts:
            names = ", ".join(spec.name for spec in self._session.inputs)
            raise PosexportError(f"this bundle takes arrays, not texts: give {names}")
        check_texts(texts, "text")
        if (size := sum(map(len, texts))) > self._max_characters:
            raise PosexportError(
                f"the request has {size} characters of text, this deployment takes at most {self._max_characters}; "
                "send fewer or shorter texts"
            )
        prompts = self.manifest.text_rules.prompts if self.manifest.text_rules else {}
        if prompt_name is not None and prompt_name not in prompts:
            raise PosexportError(
                f"unknown prompt_name {prompt_name!r:.60}; this bundle has {', '.join(prompts) or 'none'}"
            )
        # truncated as Session.encode truncates
        arrays = self._session.tokenize(texts, truncate=self.manifest.text_rules is not None)
        ids = next(arrays[spec.name] for spec in self._session.inputs if spec.role == "tokens")
        mask = arrays.get("attention_mask", np.ones_like(ids))
        lengths = [int(length) for length in mask.sum(1)]
        return Request(tokens=sum(lengths), texts=texts, lengths=lengths, prompt_name=prompt_name)

    def arrays(self, inputs: Mapping[str, Any]) -> Request:
        """A request to run arrays or nested lists by input name, which `compute` validates."""
        if not inputs:
            names = ", ".join(spec.name for spec in self._session.inputs)
            raise PosexportError(f"got no inputs; give {names}")
        return Request(tokens=max(map(_size, inputs.values())), inputs=inputs)

    def compute(self, requests: Sequence[Request]) -> list[Outputs | PosexportError]:
        """The outputs of each request, in order, or its error: a request that fails does not fail the others."""
        results: list[Outputs | PosexportError] = [{}] * len(requests)
        prompts: dict[str | None, list[int]] = {}
        for place, request in enumerate(requests):
            if request.inputs is None:
                prompts.setdefault(request.prompt_name, []).append(place)
            else:
                results[place] = self._run(request.inputs)
        for places in prompts.values():
            for place, outputs in zip(places, self._encode([requests[place] for place in places]), strict=True):
                results[place] = outputs
        return results

    def encode(self, request: Request) -> NDArray[Any]:
        """The vectors of one request's texts, [texts, elements]."""
        (result,) = self.compute([request])
        if isinstance(result, PosexportError):
            raise result
        return result[EMBEDDING]

    def probe(self) -> None:
        """Health check: encode one word; raises if the session does not compute."""
        if self.takes_texts:
            self.encode(self.texts(["health"]))

    def _encode(self, requests: Sequence[Request]) -> list[Outputs | PosexportError]:
        """The vectors of requests with the same prompt, in batches by tokens that may span several requests."""
        texts = [text for request in requests for text in request.texts]
        lengths = [length for request in requests for length in request.lengths]
        owners = [owner for owner, request in enumerate(requests) for _ in request.texts]
        # batches of rows of similar length
        vectors: list[NDArray[Any] | None] = [None] * len(texts)
        errors: dict[int, PosexportError] = {}
        for rows in Batches(self.batch_tokens).places(lengths):
            chosen = [texts[row] for row in rows]
            try:
                batch = self._session.encode(chosen, prompt_name=requests[0].prompt_name, batch_size=len(rows))
            except PosexportError as err:  # e.g. out of memory: fails the requests of these rows alone
                errors |= {owners[row]: err for row in rows}
                continue
            for row, vector in zip(rows, batch, strict=True):
                vectors[row] = vector
        by_request: list[list[NDArray[Any]]] = [[] for _ in requests]
        for owner, vector in zip(owners, vectors, strict=True):
            by_request[owner] += [] if vector is None else [vector]
        return [errors.get(owner) or {EMBEDDING: np.stack(rows)} for owner, rows in enumerate(by_request)]

    def _run(self, inputs: Mapping[str, Any]) -> Outputs | PosexportError:
        try:
            return self._session.run(inputs)
        except PosexportError as err:
            return err


def _size(value: Any) -> int:
    """Elements of an array or of nested lists."""
    try:
        return int(np.size(value))
    except ValueError:  # rows of different lengths, which `Session.run` refuses with a sentence
        return 1
