"""``posexport run``: opens a bundle, runs texts or a file of arrays, and formats the result as text or JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.base.targets.precisions import PrecisionName
from posexport.base.targets.providers import DEFAULT_PROVIDER
from posexport.errors import PosexportError
from posexport.run.arrays import check_arrays_file, read_arrays, read_texts, save_arrays, similarities
from posexport.run.batches import Progress
from posexport.run.embed import EMBEDDING, EmbeddingPrecision
from posexport.run.hybrid import COLBERT
from posexport.run.late_interaction import TOKEN_EMBEDDINGS
from posexport.run.load import load
from posexport.run.scores import Ranked
from posexport.run.session import Session
from posexport.run.vectors import pages_of

#: values of an output in the text format
SHOWN = 6


@dataclass(frozen=True)
class Answer:
    """The outputs of one run.

    ``similarity`` [N, N] by ``similarity_name`` is set for two or more texts with sentence embeddings; ``ranking``, the
    texts by descending score, for a query.
    """

    directory: Path
    providers: list[str]
    texts: list[str]
    outputs: dict[str, NDArray[Any]]
    similarity: NDArray[Any] | None = None
    similarity_name: str = "cosine"
    query: str | None = None
    ranking: list[Ranked] | None = None

    def to_json(self) -> str:
        """One JSON document with outputs as nested lists and non-finite values as null."""
        document: dict[str, Any] = {
            "bundle": str(self.directory),
            "providers": self.providers,
            "texts": self.texts,
            "outputs": {name: array.tolist() for name, array in self.outputs.items()},
        }
        if self.similarity is not None:
            document[f"{self.similarity_name}_similarity"] = self.similarity.tolist()
        if self.ranking is not None:
            document |= {"query": self.query, "ranking": self.ranking}
        return msgspec.json.encode(document).decode()

    def to_text(self) -> str:
        """A line per output with its shape and first values, and a table of similarities; or a line per ranked text."""
        if self.ranking is not None:
            return "\n".join(f"{hit['score']:10.4f}  {self.texts[hit['corpus_id']]}" for hit in self.ranking)
        width = max(len(name) for name in self.outputs)
        lines = []
        for name, array in self.outputs.items():
            first = " ".join(f"{number:.4f}" for number in array.flat[:SHOWN].tolist())
            more = " ..." if array.size > SHOWN else ""
            lines.append(f"{name:{width}}  {array.dtype} {list(array.shape)}  {first}{more}")
        if self.similarity is not None:
            numbers = range(1, len(self.texts) + 1)
            lines += [
                "",
                f"{self.similarity_name} similarity",
                "".join(["    ", *(f"{number:>8}" for number in numbers)]),
            ]
            for number, cosines, text in zip(numbers, self.similarity, self.texts, strict=True):
                lines.append("".join([f"{number:>4}", *(f"{cosine:8.4f}" for cosine in cosines), f"  {text}"]))
        return "\n".join(lines)


def answer(
    directory: Path,
    *,
    texts: Sequence[str] = (),
    texts_file: Path | None = None,
    inputs: Path | None = None,
    images: Sequence[Path] = (),
    audio: Sequence[Path] = (),
    query: str | None = None,
    only: Sequence[str] = (),
    precision: PrecisionName | None = None,
    provider: str = DEFAULT_PROVIDER,
    threads: int = 0,
    truncate: bool = False,
    prompt_name: str | None = None,
    prefix: str | None = None,
    truncate_dim: int | None = None,
    normalize_embeddings: bool = False,
    embedding_precision: EmbeddingPrecision = "float32",
    output_value: str | None = None,
    top_k: int | None = None,
    activation_fn: str | None = None,
    output: Path | None = None,
    force: bool = False,
    provider_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Answer:
    """Run a bundle on texts or a file of arrays (``.npz``, ``.safetensors``, ``.json``); ``output``: write an ``.npz``.

    ``texts_file`` has one text a line; `Session.prepare` converts the files ``images`` and ``audio`` to arrays.

    A model of sentence-transformers computes the vectors of texts by `Session.encode`, with ``prompt_name``,
    ``prefix`` (its ``prompt``), ``truncate_dim``, ``normalize_embeddings``, ``output_value`` and
    ``embedding_precision`` (its ``precision``). With a ``query`` the texts are the documents of `Session.rank`, with
    ``prompt_name``, ``prefix``, ``top_k`` and ``activation_fn``, and the only output is their scores.

    Raises PosexportError for errors of `load` and the session, and unless exactly one of ``texts`` and ``inputs`` is
    set.
    """
    # options that need sentence embeddings, and options of rank
    prompts: dict[str, Any] = {"prompt_name": prompt_name, "prompt": prefix}
    only_vectors: dict[str, Any] = {"truncate_dim": truncate_dim, "normalize_embeddings": normalize_embeddings}
    only_vectors["precision"] = embedding_precision
    only_vectors |= {} if output_value is None else {"output_value": output_value}
    embed, ranks = prompts | only_vectors, {"top_k": top_k, "activation_fn": activation_fn}
    if top_k is not None and top_k < 1:
        raise PosexportError(f"--top-k must be at least 1, got {top_k}; leave it out for all texts")
    check_arrays_file(output, force=force)
    # inputs: texts, a file of arrays, or files of images or audio
    texts = [*texts, *(read_texts(texts_file) if texts_file is not None else ())]
    vector_options = _any(embed)
    embeds = _any(only_vectors) if query is not None else vector_options
    files = {kind: [str(file) for file in paths] for kind, paths in (("images", images), ("audio", audio)) if paths}
    if files and (texts or inputs is not None or len(files) > 1):
        raise PosexportError("pictures and sounds are run alone; leave out --text, --texts and --inputs, or --tensors")
    documents = texts or files.get("images", [])
    if not files or query is not None or vector_options or truncate:
        _check(
            texts=documents, inputs=inputs, query=query, only=only, truncate=truncate, embed=embeds, rank=_any(ranks)
        )
    arrays = None if inputs is None else read_arrays(inputs)
    session = load(
        directory, precision=precision, provider=provider, threads=threads, provider_options=provider_options
    )
    of_pages = _are_pages(session, files, only, about_texts=query is not None or vector_options or truncate)
    # run: rank, arrays, sentence embeddings or texts
    ranking = (
        None
        if query is None
        else session.rank(query, documents, progress=progress, activation_fn=activation_fn, **prompts)
    )
    chosen = list(only) or None
    if files and not of_pages:
        arrays = session.prepare(**files)
    if ranking is not None:
        result = {"scores": np.array([hit["score"] for hit in sorted(ranking, key=lambda hit: hit["corpus_id"])])}
    elif arrays is not None:
        result = session.run(arrays, outputs=chosen)
    elif (
        of_pages
        or vector_options
        or (session.manifest.text_rules is not None and chosen in (None, [EMBEDDING], [TOKEN_EMBEDDINGS]))
    ):
        given: dict[str, Any] = {"images": documents} if of_pages else {"inputs": texts}
        values = session.encode(**given, truncate=truncate, progress=progress, **embed)
        result = _named(values, "colbert_vecs" if output_value == COLBERT else TOKEN_EMBEDDINGS)
    else:
        result = session.run_texts(texts, truncate=truncate, outputs=chosen)
    # save, and compare the embeddings of several texts
    if output is not None:
        save_arrays(output, result, force=force)
    name = session.similarity_fn_name
    similarity = None
    if EMBEDDING in result and len(texts) > 1 and "binary" not in embedding_precision:
        vectors = result[EMBEDDING].astype(np.float64)
        similarity = similarities(vectors) if name == "cosine" else session.similarity(vectors, vectors)
    shown = ranking if ranking is None else ranking[:top_k]
    return Answer(directory, session.providers, list(documents), result, similarity, name, query, shown)


def _are_pages(session: Session, files: Mapping[str, Any], only: Sequence[str], *, about_texts: bool) -> bool:
    """Whether pictures are pages that the bundle has vectors of; PosexportError where others have options of texts."""
    of_pages = "images" in files and not only and pages_of(session.manifest.text_rules) is not None
    if files and not of_pages and about_texts:
        raise PosexportError(
            "--query, --truncate and the options for vectors are for texts, and for pictures of models that find pages "
            "by them; leave them out"
        )
    return of_pages


def _any(options: Mapping[str, Any]) -> bool:
    """Whether an option differs from its default."""
    return any(value is not None and value is not False and value != "float32" for value in options.values())


def _check(
    *,
    texts: Sequence[str],
    inputs: Path | None,
    query: str | None,
    only: Sequence[str],
    truncate: bool,
    embed: bool,
    rank: bool,
) -> None:
    """Raises PosexportError for options that exclude each other; ``embed``, ``rank``: an option of these is set."""
    if bool(texts) == (inputs is not None):
        if query is not None and not texts:
            raise PosexportError("--query needs what it ranks; give --text, --texts, or pictures of pages (--image)")
        raise PosexportError(f"give --text, --texts or --inputs, {'not both' if texts else 'one of them'}")
    if query is not None and (inputs is not None or only or embed or truncate):
        raise PosexportError(
            "--query ranks texts, or pictures of pages, and gives their scores; leave out --inputs, --only, --truncate "
            "and the options for vectors"
        )
    if rank and query is None:
        raise PosexportError("--top-k and --activation-fn are for scores; leave them out or give --query")
    if truncate and not texts:
        raise PosexportError("--truncate shortens texts, not arrays; leave it out or give --text")
    if embed and (inputs is not None or list(only) not in ([], [EMBEDDING], [TOKEN_EMBEDDINGS])):
        raise PosexportError(
            "--prompt-name, --prefix, --truncate-dim, --normalize-embeddings, --embedding-precision and --output-value "
            f"are for the vectors of texts; leave them out, or give --text and no --only but {EMBEDDING}"
        )


def _named(vectors: Any, name: str = TOKEN_EMBEDDINGS) -> dict[str, NDArray[Any]]:
    """The vectors of all texts as one output; for token vectors, and weights with their ids, outputs for each text."""
    if isinstance(vectors, dict):
        return {key: array for kind, values in vectors.items() for key, array in _named(values, kind).items()}
    if not isinstance(vectors, list):
        return {EMBEDDING: vectors}
    arrays: dict[str, NDArray[Any]] = {}
    for number, value in enumerate(vectors):
        if isinstance(value, dict):
            arrays[f"token_ids.{number}"] = np.array([int(key) for key in value], np.int64)
            arrays[f"lexical_weights.{number}"] = np.array(list(value.values()), np.float32)
        else:
            arrays[f"{name}.{number}"] = value
    return arrays
