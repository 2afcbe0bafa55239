"""Session methods with the signatures of ``SentenceTransformer`` and ``MultiVectorEncoder``."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import PageRules, TextRules
from posexport.errors import PosexportError
from posexport.run import embed
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
from posexport.run.late_interaction import DOCUMENT, QUERY, TOKEN_EMBEDDINGS, role_of, token_vectors
from posexport.run.pages import as_pictures, page_vectors, query_vectors

Vectors = NDArray[Any] | list[NDArray[Any]]
OutputValue = Literal["sentence_embedding", "token_embeddings"]


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
                states of each text.
            precision: ``float32``, ``int8``, ``uint8``, ``binary`` or ``ubinary``, as ``quantize_embeddings`` makes
                them of these vectors.
            convert_to_numpy: return one array; False: a list with an array for each text, not PyTorch tensors.
            normalize_embeddings: divide each vector by its length, after ``truncate_dim``.
            truncate_dim: number of elements that remain; None: the ``truncate_dim`` of the rules, else all.
            extra: ``images``: pictures of pages in place of ``inputs``, one or a list (`posexport.run.images`), of
                which ``batch_size`` (1) share a call; ``truncate``: truncate texts at the model's limit if the bundle
                has no ``text_rules``; ``batch_tokens``: maximum tokens of one call, padding included (4096; texts of
                similar length share a call); ``progress``: called with the texts done, the texts in total, and
                ``"texts"``.

        Raises:
            PosexportError: a bundle without sentence_embedding or without a tokenizer, an unknown prompt, a text over
                the limit that is not truncated, an argument that needs PyTorch (``convert_to_tensor``, ``device``,
                ``pool``).
        """
        # arguments
        images, inputs = extra.pop("images", None), extra.pop("sentences", None) if inputs is None else inputs
        if images is not None and inputs is not None:
            raise PosexportError("encode takes texts, or pictures of pages as images; give one of them")
        if images is not None and (prompt is not None or prompt_name not in (None, DOCUMENT) or extra.get("truncate")):
            raise PosexportError("pictures of pages have no prompt and are not truncated; leave out these options")
        texts, single = as_texts(inputs) if images is None else as_pictures(images)
        truncate = extra.pop("truncate", False)
        batches = Batches(
            batch_tokens=extra.pop("batch_tokens", BATCH_TOKENS),
            batch_size=batch_size,
            progress=with_bar("Encoding", show=show_progress_bar, progress=extra.pop("progress", None)),
        )
        refuse("encode", extra)
        check_precision(precision)
        rules = self.manifest.text_rules or TextRules()
        self._check_output(output_value, rules, of_pages=images is not None)
        cut = functools.partial(shortened, rules=rules, truncate_dim=truncate_dim, normalize=normalize_embeddings)
        # token vectors (ColBERT), sentence embeddings or hidden states
        vectors: Vectors
        if images is not None:
            vectors = [cut(vectors_TC) for vectors_TC in self._page_vectors(texts, rules, batches)]
        elif rules.tokens is not None:
            role = _role(rules, prompt_name)
            per_text = self._token_vectors(texts, rules, role, prompt=prompt, batches=batches)
            vectors = [cut(vectors_TC) for vectors_TC in per_text]
        elif not texts:
            vectors = np.array([]) if output_value == EMBEDDING else []
        else:
            prefix = prompt_of(rules, prompt_name, prompt)
            rows = self._texts.rows(prompted(texts, prefix), truncate=truncate or self.manifest.text_rules is not None)
            if output_value == EMBEDDING:
                run = pooled_run(self._giving(EMBEDDING), self._texts, prefix, rules, self.inputs)
                vectors = cut(batches.run(run, self._texts, rows))
            else:
                vectors = states_of(self._giving(STATES), self._texts, rows, batches)
        # embedding quantization
        if isinstance(vectors, list):
            vectors = quantized_rows(vectors, precision)
        elif len(vectors):
            vectors = quantized(vectors, precision)
        return vectors[0] if single else vectors if convert_to_numpy else list(vectors)

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

        Distances are negative. For token vectors both are lists of [tokens, elements], queries first.
        """
        return embed.similarity(embeddings1, embeddings2, self.manifest.text_rules or TextRules())

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> NDArray[Any]:
        """Similarity of the first vectors with the second vectors of the same index, [first]."""
        return embed.similarity_pairwise(embeddings1, embeddings2, self.manifest.text_rules or TextRules())

    def _check_output(self, output_value: str | None, rules: TextRules, *, of_pages: bool) -> None:
        """Raises PosexportError for an output_value that the bundle does not compute, and for pictures of pages."""
        if of_pages and pages_of(rules) is None:
            raise PosexportError(
                f"this bundle is for {self.manifest.task} and has no vectors of pages; give texts, or use prepare and "
                "run"
            )
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
