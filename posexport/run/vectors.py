"""Session methods with the signatures of ``SentenceTransformer`` and ``MultiVectorEncoder``."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import PageRules, TextRules
from posexport.errors import PosexportError
from posexport.run import embed
from posexport.run.adapters import AdapterNames, adapter_feeds
from posexport.run.batches import BATCH_TOKENS, Batches, Progress
from posexport.run.call_forms import OpenBundle, as_texts, refuse, with_bar
from posexport.run.embed import (
    EMBEDDING,
    STATES,
    EmbeddingPrecision,
    check_precision,
    pooled_run,
    prompt_of,
    prompted,
    quantized,
    quantized_rows,
    shortened,
    states_of,
)
from posexport.run.hybrid import ALL, DENSE, HYBRID, KEYS, hybrid, outputs_of
from posexport.run.hybrid import similarity as hybrid_similarity
from posexport.run.late_interaction import DOCUMENT, QUERY, TOKEN_EMBEDDINGS, role_of, token_vectors
from posexport.run.pages import as_pictures, page_vectors, query_vectors
from posexport.run.spans import Offsets, late_chunks, offsets_of
from posexport.run.spans import checked as checked_spans
from posexport.run.texts import adapted

#: dictionaries: of BGE-M3's ``sparse``, and of ``all``; tuples: with ``return_offsets``
Vectors = NDArray[Any] | list[Any] | dict[str, Any] | tuple[Any, Any]
Cut = Callable[[NDArray[Any]], NDArray[Any]]
OutputValue = Literal["sentence_embedding", "token_embeddings", "dense", "sparse", "colbert", "all"]


class CallKeywords(TypedDict, total=False):
    """Further keyword arguments of methods with sentence-transformers' signatures: posexport's and unsupported ones."""

    batch_tokens: int
    progress: Progress | None
    sentences: Any
    convert_to_tensor: bool
    device: Any
    pool: Any
    chunk_size: Any


class Encoding(CallKeywords, total=False):
    """Further keyword arguments of `VectorMethods.encode`."""

    truncate: bool
    images: Any
    spans: Any
    return_offsets: bool
    adapter: AdapterNames | None
    task: AdapterNames | None


class VectorMethods(OpenBundle):
    """Embeddings of texts and their similarity."""

    def encode(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: OutputValue = EMBEDDING,
        precision: EmbeddingPrecision = "float32",
        convert_to_numpy: bool = True,
        *,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **extra: Unpack[Encoding],
    ) -> Vectors:
        """Computes embeddings [texts, elements] as ``SentenceTransformer.encode`` does; for one str, [elements].

        A model with token vectors (ColBERT) returns a list of [tokens, elements], for queries with
        ``prompt_name="query"`` and else for documents, as ``MultiVectorEncoder`` does. A model that finds pages by
        their pictures (ColPali) returns such lists of pages for ``images=``, and of queries for texts.

        Truncation, lower case and prompts follow the manifest's ``text_rules``.

        Args:
            inputs: a text, or texts: a list, a tuple, an array of strings, a generator.
            prompt_name: name of the bundle's prompt that precedes each text; None: the default prompt.
            prompt: text that precedes each text in place of a named prompt; ``""`` for no prompt.
            batch_size: maximum texts of one call; None: as many as ``batch_tokens`` allow.
            show_progress_bar: show a progress bar on stderr.
            output_value: ``sentence_embedding``, or ``token_embeddings``: a list of [tokens, elements], the hidden
                states of each text. Of BGE-M3 also ``sparse``: a list of dictionaries from ids to weights,
                ``colbert``: a list of [tokens - 1, elements], and ``all``: a dictionary of both and the embeddings, as
                ``BGEM3FlagModel`` returns it; ``dense`` is ``sentence_embedding``.
            precision: ``float32``, ``int8``, ``uint8``, ``binary`` or ``ubinary``, as ``quantize_embeddings`` makes
                them of these vectors.
            convert_to_numpy: return one array; False: a list with an array for each text, not PyTorch tensors.
            normalize_embeddings: divide each vector by its length, after ``truncate_dim``.
            truncate_dim: number of elements that remain; None: the ``truncate_dim`` of the rules, else all.
            extra: ``images``: pictures of pages in place of ``inputs``, one or a list (`posexport.run.images`), of
                which ``batch_size`` (1) share a call; ``truncate``: truncate texts at the model's limit if the bundle
                has no ``text_rules``; ``batch_tokens``: maximum tokens of one call, padding included (4096; texts of
                similar length share a call); ``progress``: called with the texts done, the texts in total, and
                ``"texts"``. ``spans``: for each text a list of (start, end) in its characters; the result is a list of
                [spans, elements], the mean state of each span's tokens (late chunking). ``return_offsets``: with
                ``token_embeddings``, return a second list of [tokens, 2], the first character of each token and the one
                after it; (0, 0) for special tokens and a prompt's. ``adapter``, or ``task``: the name of a LoRA adapter
                (``--adapters``), or a list with one, or None, for each text.

        Raises:
            PosexportError: a bundle without sentence_embedding or without a tokenizer, an unknown prompt, a text over
                the limit that is not truncated, an argument that needs PyTorch (``convert_to_tensor``, ``device``,
                ``pool``).
        """
        images, inputs = extra.pop("images", None), extra.pop("sentences", None) if inputs is None else inputs
        if images is not None and inputs is not None:
            raise PosexportError("encode takes texts, or pictures of pages as images; give one of them")
        if images is not None and (prompt is not None or prompt_name not in (None, DOCUMENT) or extra.get("truncate")):
            raise PosexportError("pictures of pages have no prompt and are not truncated; leave out these options")
        texts, single = as_texts(inputs) if images is None else as_pictures(images)
        truncate = extra.pop("truncate", False)
        spans, return_offsets = extra.pop("spans", None), extra.pop("return_offsets", False)
        rules = self.manifest.text_rules or TextRules()
        of_texts = images is None and rules.tokens is None and output_value not in HYBRID
        adapters = self._adapters(extra, len(texts), of_texts=of_texts)
        batches = Batches(
            batch_tokens=extra.pop("batch_tokens", BATCH_TOKENS),
            batch_size=batch_size,
            progress=with_bar("Encoding", show=show_progress_bar, progress=extra.pop("progress", None)),
        )
        refuse("encode", extra)
        check_precision(precision)
        output_value = EMBEDDING if output_value == DENSE else output_value
        self._check_output(output_value, rules, of_pages=images is not None)
        self._check_places(output_value, rules, spans=spans is not None, return_offsets=return_offsets)
        cut = functools.partial(shortened, rules=rules, truncate_dim=truncate_dim, normalize=normalize_embeddings)
        if output_value in HYBRID:
            if precision != "float32" or normalize_embeddings or truncate_dim is not None:
                raise PosexportError(
                    "precision, normalize_embeddings and truncate_dim are for the vectors of texts; leave them out "
                    f"with output_value={output_value!r}"
                )
            values = self._hybrid(texts, (prompt_name, prompt), rules, batches, output_value, cut)
            values = {name: each[0] for name, each in values.items()} if single else values
            return values if output_value == ALL else values[KEYS[output_value]]
        # token vectors (ColBERT), sentence embeddings or hidden states
        vectors: Vectors
        offsets: list[Offsets] = []
        if images is not None:
            vectors = [cut(vectors_TC) for vectors_TC in self._page_vectors(texts, rules, batches)]
        elif rules.tokens is not None:
            role = _role(rules, prompt_name)
            per_text = self._token_vectors(texts, rules, role, prompt=prompt, batches=batches)
            vectors = [cut(vectors_TC) for vectors_TC in per_text]
        elif not texts:
            vectors = np.array([]) if output_value == EMBEDDING and spans is None else []
        else:
            prefix = prompt_of(rules, prompt_name, prompt)
            rows = self._texts.rows(prompted(texts, prefix), truncate=truncate or self.manifest.text_rules is not None)
            offsets = [offsets_of(row, prefix) for row in rows] if return_offsets or spans is not None else []
            pool = None
            if spans is not None:
                listed = checked_spans(spans, texts, single=single)
                pool = functools.partial(late_chunks, offsets=offsets, spans=listed)
            vectors = self._of_rows(adapted(rows, adapters), prefix, rules, batches, output_value, cut, pool)
        vectors = _quantized(vectors, precision)
        first: Any = vectors
        result = first[0] if single else vectors if convert_to_numpy else list(vectors)
        return (result, offsets[0] if single else offsets) if return_offsets else result

    def _of_rows(
        self,
        rows: Sequence[Any],
        prefix: str,
        rules: TextRules,
        batches: Batches,
        output_value: str,
        cut: Cut,
        pool: Callable[[list[NDArray[Any]]], list[NDArray[Any]]] | None,
    ) -> NDArray[Any] | list[NDArray[Any]]:
        """The embedding of each text, its hidden states, or what ``pool`` makes of all texts' states."""
        if output_value == EMBEDDING and pool is None:
            run = pooled_run(self._giving(EMBEDDING), self._texts, prefix, rules, self.inputs)
            return cut(batches.run(run, self._texts, rows))
        states = states_of(self._giving(STATES), self._texts, rows, batches)
        return states if pool is None else [cut(each) for each in pool(states)]

    def _adapters(self, extra: Encoding, rows: int, *, of_texts: bool) -> list[int] | None:
        """The id of each text's adapter; None: no adapter is named. ``of_texts``: for a vector, or states, of each."""
        adapter, task = extra.pop("adapter", None), extra.pop("task", None)
        if adapter is not None and task is not None:
            raise PosexportError("adapter and task both name the adapter; give one of them")
        if not of_texts and (adapter is not None or task is not None):
            raise PosexportError("adapter is for one vector, or states, of each text; use run_texts(..., adapter=...)")
        feeds = adapter_feeds(self.inputs, task if adapter is None else adapter, rows)
        return next((ids_B.tolist() for ids_B in feeds.values()), None)

    def encode_query(
        self, inputs: str | Iterable[str], prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Vectors:
        """`encode` with the prompt ``query`` unless ``prompt`` or ``prompt_name`` names another.

        A model without that prompt has an empty one for queries even if it has a default prompt, as in the library.
        """
        return self._encode_as(QUERY, inputs, prompt_name, prompt, options)

    def encode_document(
        self, inputs: str | Iterable[str], prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Vectors:
        """`encode` with the prompt ``document`` unless ``prompt`` or ``prompt_name`` names another.

        A model without that prompt has an empty one for documents even if it has a default prompt, as in the library,
        where the names ``passage`` and ``corpus`` are for models made without saved prompts.
        """
        return self._encode_as(DOCUMENT, inputs, prompt_name, prompt, options)

    def _encode_as(
        self, role: str, inputs: Any, prompt_name: str | None, prompt: str | None, options: dict[str, Any]
    ) -> Vectors:
        rules = self.manifest.text_rules or TextRules()
        if role == DOCUMENT and pages_of(rules) is not None:
            return self.encode(None, prompt_name, prompt, images=inputs, **options)
        name = role if prompt_name is None and prompt is None else prompt_name
        if rules.tokens is None:
            return self.encode(inputs, name, prompt, **options)
        # for token vectors the name selects markers and lengths, so another prompt is passed as a text
        text = prompt if name in (None, role) else prompt_of(rules, name, prompt)
        return self.encode(inputs, role, text, **options)

    @property
    def similarity_fn_name(self) -> str:
        """Name of the similarity function, for example ``cosine``; see `posexport.base.text_rules.TextRules`."""
        return (self.manifest.text_rules or TextRules()).similarity

    def similarity(self, embeddings1: Any, embeddings2: Any) -> NDArray[Any]:
        """Similarity of all pairs of the first and second vectors, [first, second], by `similarity_fn_name`.

        Distances are negative. For token vectors both are lists of [tokens, elements], queries first. For weights of
        BGE-M3 (``output_value="sparse"``) both are dictionaries or lists of them; for its token vectors the score is
        MaxSim divided by the query's vectors.
        """
        rules = self.manifest.text_rules or TextRules()
        scores = None if rules.unused_tokens is None else hybrid_similarity(embeddings1, embeddings2)
        return embed.similarity(embeddings1, embeddings2, rules) if scores is None else scores

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> NDArray[Any]:
        """Similarity of the first vectors with the second vectors of the same index, [first]."""
        rules = self.manifest.text_rules or TextRules()
        scores = None if rules.unused_tokens is None else hybrid_similarity(embeddings1, embeddings2, pairwise=True)
        return embed.similarity_pairwise(embeddings1, embeddings2, rules) if scores is None else scores

    def _hybrid(
        self,
        texts: Sequence[str],
        prompts: tuple[str | None, str | None],
        rules: TextRules,
        batches: Batches,
        output_value: str,
        cut: Cut,
    ) -> dict[str, Any]:
        """Values of BGE-M3 for each text, by `KEYS`; ``prompts``: the name of one, or a text."""
        outputs = outputs_of(output_value)
        if not texts:
            return {KEYS[kind]: np.array([]) if kind == DENSE else [] for kind in outputs}
        prefix, names = prompt_of(rules, *prompts), list(outputs.values())
        rows = self._texts.rows(prompted(texts, prefix), truncate=True)
        run = pooled_run(lambda feeds: self.run(feeds, outputs=names), self._texts, prefix, rules, self.inputs)
        values: dict[str, Any] = hybrid(run, self._texts, rows, rules.unused_tokens or [], batches)
        return values | {name: cut(np.array(values[name])) for name in (KEYS[DENSE],) if name in values}

    def _check_output(self, output_value: str | None, rules: TextRules, *, of_pages: bool) -> None:
        """Raises PosexportError for an output_value that the bundle does not compute, and for pictures of pages."""
        if of_pages and pages_of(rules) is None:
            raise PosexportError(
                f"this bundle is for {self.manifest.task} and has no vectors of pages; give texts, or use prepare and "
                "run"
            )
        if output_value in HYBRID:
            if rules.unused_tokens is None:
                raise PosexportError(
                    f"this bundle has no weights and vectors of tokens for output_value = {output_value!r}; convert a "
                    "folder of BGE-M3, with sparse_linear.pt and colbert_linear.pt, and --allow-pickle"
                )
            return
        if output_value not in (EMBEDDING, TOKEN_EMBEDDINGS):
            raise PosexportError(
                f"output_value = {output_value!r:.60} is not computed here; it must be {EMBEDDING} or "
                f"{TOKEN_EMBEDDINGS}, and run_texts gives every output of the graph"
            )
        needed = EMBEDDING if output_value == EMBEDDING else STATES
        names = [spec.name for spec in self.outputs]
        if rules.tokens is None and needed not in names:
            raise PosexportError(
                f"this bundle gives {', '.join(names)} and no {needed}; use run_texts, or "
                "convert a model of sentence-transformers"
            )

    def _check_places(self, output_value: str, rules: TextRules, *, spans: bool, return_offsets: bool) -> None:
        """Raises PosexportError where there are no hidden states of tokens, or none that make the text's vector."""
        if not spans and not return_offsets:
            return
        if rules.tokens is not None or output_value in HYBRID:
            raise PosexportError(
                "spans and return_offsets are for hidden states; leave them out for the vectors of late interaction"
            )
        if return_offsets and output_value != TOKEN_EMBEDDINGS:
            raise PosexportError("return_offsets is for output_value='token_embeddings'; leave it out")
        if not spans:
            return
        if output_value != EMBEDDING:
            raise PosexportError("spans become vectors of texts; leave output_value out")
        widths = {spec.name: spec.axes[-1] for spec in self.outputs if spec.name in (EMBEDDING, STATES)}
        projected = any(name.endswith("/model.safetensors") for name in self.manifest.files)
        if projected or len(widths) < 2 or len({*widths.values()}) > 1:
            raise PosexportError(
                "this model's vectors are no poolings of its hidden states alone, so spans have none; encode each span "
                "as a text"
            )

    def _token_vectors(
        self, texts: Sequence[str], rules: TextRules, role: str, *, prompt: str | None = None, batches: Batches
    ) -> list[NDArray[Any]]:
        if pages_of(rules) is not None:
            return query_vectors(self, self._texts, texts, rules, prompt=prompt, batches=batches)
        run = self._giving(TOKEN_EMBEDDINGS)
        return token_vectors(run, self._texts, texts, rules, role=role, prompt=prompt, batches=batches)

    def _page_vectors(self, pictures: Sequence[Any], rules: TextRules, batches: Batches) -> list[NDArray[Any]]:
        pages = pages_of(rules)
        assert pages is not None
        return page_vectors(self, self._texts, pictures, pages, batches)


def _quantized(vectors: Any, precision: EmbeddingPrecision) -> Any:
    """In ``precision``, where they are arrays."""
    if isinstance(vectors, list):
        return quantized_rows(vectors, precision)
    return quantized(vectors, precision) if len(vectors) else vectors


def _role(rules: TextRules, prompt_name: str | None) -> str:
    """The role of texts with token vectors, which are documents by default, and queries of a model of pages."""
    if pages_of(rules) is None:
        return role_of(prompt_name)
    if prompt_name not in (None, QUERY):
        raise PosexportError(
            f"got texts and prompt_name {prompt_name!r:.60}; texts are queries of this model, and pages are pictures: "
            "give images"
        )
    return QUERY


def pages_of(rules: TextRules | None) -> PageRules | None:
    """The rules of pages; None for a model of texts alone."""
    return None if rules is None or rules.tokens is None else rules.tokens.pages
