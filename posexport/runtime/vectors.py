"""The methods of a session that ``SentenceTransformer`` and ``MultiVectorEncoder`` have, by their arguments."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.runtime import similarity
from posexport.runtime.batches import BATCH_TOKENS, Batches, Progress
from posexport.runtime.call_forms import as_texts, refuse, shown
from posexport.runtime.embed import EMBEDDING, STATES, pooled_run, prompt_of, prompted, shortened, states_of
from posexport.runtime.embedding_precision import EmbeddingPrecision, check_precision, quantized, quantized_rows
from posexport.runtime.late_interaction import DOCUMENT, QUERY, TOKEN_EMBEDDINGS, role_of, token_vectors
from posexport.runtime.open_bundle import OpenBundle
from posexport.spec import TextRules

Vectors = NDArray[Any] | list[NDArray[Any]]
OutputValue = Literal["sentence_embedding", "token_embeddings"]


class Encoding(TypedDict, total=False):
    """Arguments of `VectorMethods.encode` that sentence-transformers does not have, its former ones and the refused."""

    truncate: bool
    batch_tokens: int
    progress: Progress | None
    sentences: Any
    convert_to_tensor: bool
    device: Any
    pool: Any
    chunk_size: Any


class VectorMethods(OpenBundle):
    """Vectors of texts and how alike they are."""

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
        **others: Unpack[Encoding],
    ) -> Vectors:
        """Vectors of texts, [texts, elements], as ``SentenceTransformer.encode`` computes them; of a str, [elements].

        Of a model with a vector for each token (ColBERT): a list of [tokens, elements], of queries where
        ``prompt_name`` is ``query`` and of documents else, as ``MultiVectorEncoder`` computes them.

        The rules are those of the manifest (``text_rules``): where texts are cut, whether they are lowered, prompts.

        Args:
            inputs: a text, or texts: a list, a tuple, an array of strings, a generator.
            prompt_name: of the bundle's prompts, the one that is put before each text; None: the default one.
            prompt: a text that is put before each, in place of a named one; ``""``: none.
            batch_size: texts of one call at most; None: as many as ``batch_tokens`` allow.
            show_progress_bar: show on stderr how far it is.
            output_value: ``sentence_embedding``, or ``token_embeddings``: a list of [tokens, elements], the states of
                each text's tokens.
            precision: ``float32``, ``int8``, ``uint8``, ``binary`` or ``ubinary``, as ``quantize_embeddings`` makes
                them of these vectors.
            convert_to_numpy: one array; False: a list of an array for each text (PyTorch's tensors are not made).
            normalize_embeddings: divide each vector by its length, behind the cut.
            truncate_dim: how many elements are kept; None: as the rules say, else all.
            others: ``truncate`` cuts texts at the model's limit where no rules say that they are cut;
                ``batch_tokens``, of one call, padding included (4096; texts of about the same length share one);
                ``progress``, called with how many texts are done, how many there are, and ``"texts"``.

        Raises:
            PosexportError: a bundle that gives no sentence_embedding or has no tokenizer, an unknown prompt, a text
                over the limit unless it is cut, an argument that needs PyTorch (``convert_to_tensor``, ``device``,
                ``pool``).
        """
        texts, single = as_texts(others.pop("sentences", None) if inputs is None else inputs)
        truncate = others.pop("truncate", False)
        batches = Batches(
            batch_tokens=others.pop("batch_tokens", BATCH_TOKENS),
            batch_size=batch_size,
            progress=shown("Encoding", wanted=show_progress_bar, progress=others.pop("progress", None)),
        )
        refuse("encode", others)
        check_precision(precision)
        rules = self.manifest.text_rules or TextRules()
        self._check_output(output_value, rules)
        cut = functools.partial(shortened, rules=rules, truncate_dim=truncate_dim, normalize=normalize_embeddings)
        found: Vectors
        if rules.tokens is not None:
            role = role_of(prompt_name)
            found = [cut(each) for each in self._token_vectors(texts, rules, role, prompt=prompt, batches=batches)]
        elif not texts:
            found = np.array([]) if output_value == EMBEDDING else []
        else:
            before = prompt_of(rules, prompt_name, prompt)
            rows = self._texts.rows(prompted(texts, before), truncate=truncate or self.manifest.text_rules is not None)
            if output_value == EMBEDDING:
                run = pooled_run(self._giving(EMBEDDING), self._texts, before, rules, self.inputs)
                found = cut(batches.run(run, self._texts, rows))
            else:
                found = states_of(self._giving(STATES), self._texts, rows, batches)
        if isinstance(found, list):
            found = quantized_rows(found, precision)
        elif len(found):
            found = quantized(found, precision)
        return found[0] if single else found if convert_to_numpy else list(found)

    def encode_query(
        self, inputs: str | Iterable[str], prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Vectors:
        """`encode` behind the prompt ``query``, unless ``prompt`` or ``prompt_name`` is given.

        A model without that prompt has none for queries, whatever its default prompt is, as in the library.
        """
        return self._encode_as(QUERY, inputs, prompt_name, prompt, options)

    def encode_document(
        self, inputs: str | Iterable[str], prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Vectors:
        """`encode` behind the prompt ``document``, unless ``prompt`` or ``prompt_name`` is given.

        A model without that prompt has none for documents, whatever its default prompt is, as in the library: the names
        ``passage`` and ``corpus`` are for models made without saved prompts.
        """
        return self._encode_as(DOCUMENT, inputs, prompt_name, prompt, options)

    def _encode_as(
        self, role: str, inputs: Any, prompt_name: str | None, prompt: str | None, options: dict[str, Any]
    ) -> Vectors:
        rules = self.manifest.text_rules or TextRules()
        name = role if prompt_name is None and prompt is None else prompt_name
        if rules.tokens is None:
            return self.encode(inputs, name, prompt, **options)
        # the name chooses markers and lengths there, so another prompt than the role's own is given as a text
        text = prompt if name in (None, role) else prompt_of(rules, name, prompt)
        return self.encode(inputs, role, text, **options)

    @property
    def similarity_fn_name(self) -> str:
        """How `similarity` compares vectors, as the checkpoint says: ``cosine``, ``dot``, ``maxsim`` and so on."""
        return (self.manifest.text_rules or TextRules()).similarity

    def similarity(self, embeddings1: Any, embeddings2: Any) -> NDArray[Any]:
        """How alike each of the first vectors is to each of the second, [first, second], by `similarity_fn_name`.

        Distances are negative. Of a model with a vector for each token: lists of [tokens, elements], queries first.
        """
        return similarity.similarity(embeddings1, embeddings2, self.manifest.text_rules or TextRules())

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> NDArray[Any]:
        """How alike each of the first vectors is to the second one at the same place, [first]."""
        return similarity.similarity_pairwise(embeddings1, embeddings2, self.manifest.text_rules or TextRules())

    def _check_output(self, output_value: str | None, rules: TextRules) -> None:
        """PosexportError for values that the bundle's outputs do not hold."""
        if output_value not in (EMBEDDING, TOKEN_EMBEDDINGS):
            raise PosexportError(
                f"output_value = {output_value!r:.60} is not computed here; it must be {EMBEDDING} or "
                f"{TOKEN_EMBEDDINGS}, and run_texts gives every output of the graph"
            )
        needed = EMBEDDING if output_value == EMBEDDING else STATES
        names = [spec.name for spec in self.outputs]
        if rules.tokens is None and needed not in names:
            raise PosexportError(
                f"this bundle gives {', '.join(names)} and no {needed}; use run_texts (posexport run --text), or "
                "convert a model of sentence-transformers"
            )

    def _token_vectors(
        self, texts: Sequence[str], rules: TextRules, role: str, *, prompt: str | None = None, batches: Batches
    ) -> list[NDArray[Any]]:
        run = self._giving(TOKEN_EMBEDDINGS)
        return token_vectors(run, self._texts, texts, rules, role=role, prompt=prompt, batches=batches)
