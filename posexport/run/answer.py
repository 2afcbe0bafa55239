"""``posexport run``: opens a bundle, runs texts or a file of arrays, and formats the result as text or JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.base.options.run import RunOptions
from posexport.errors import PosexportError
from posexport.run.adapters import adapter_feeds
from posexport.run.arrays import check_arrays_file, read_arrays, read_texts, save_arrays, similarities
from posexport.run.batches import Progress
from posexport.run.embed import EMBEDDING
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


def answer(directory: Path, options: RunOptions, progress: Progress | None = None) -> Answer:
    """Run a bundle on texts, a file of arrays (``.npz``, ``.safetensors``, ``.json``), or files of pictures or sound.

    `Session.prepare` converts the files to arrays. A model of sentence-transformers computes the vectors of texts by
    `Session.encode`. With a query the texts are the documents of `Session.rank`, and the only output is their scores.

    Raises:
        PosexportError: of `load` and the session, and for options that exclude each other.
    """
    if options.top_k is not None and options.top_k < 1:
        raise PosexportError(f"--top-k must be at least 1, got {options.top_k}; leave it out for all texts")
    output = None if options.output is None else Path(options.output)
    check_arrays_file(output, force=options.force)
    # inputs: texts, a file of arrays, or files of images or audio
    texts = [*options.texts, *(read_texts(Path(options.texts_file)) if options.texts_file is not None else ())]
    kinds = {"images": options.images, "audio": options.audio}
    files = {kind: [str(file) for file in paths] for kind, paths in kinds.items() if paths}
    if files and (texts or options.inputs is not None or len(files) > 1):
        raise PosexportError("pictures and sounds are run alone; leave out --text, --texts and --inputs, or --tensors")
    documents = texts or files.get("images", [])
    about_texts = options.query is not None or options.about_vectors or options.truncate
    if not files or about_texts:
        _check(options, documents)
    arrays = None if options.inputs is None else read_arrays(Path(options.inputs))
    session = load(directory, **options.opening)
    of_pages = _are_pages(session, files, options.only, about_texts=about_texts)
    if files and not of_pages:
        arrays = session.prepare(**files)
    ranking = None
    if options.query is not None:
        given = options.prompt | {"activation_fn": options.activation_fn}
        ranking = session.rank(options.query, documents, progress=progress, **given)
        result = {"scores": np.array([hit["score"] for hit in sorted(ranking, key=lambda hit: hit["corpus_id"])])}
        ranking = ranking[: options.top_k]
    elif arrays is not None:
        chosen = adapter_feeds(session.inputs, options.adapter, len(next(iter(arrays.values()), ())), "rows")
        result = session.run({**arrays, **chosen}, outputs=list(options.only) or None)
    elif of_pages:
        result = _encoded(session, options, progress, {"images": documents})
    else:
        result = _of_texts(session, options, progress, texts)
    if output is not None:
        save_arrays(output, result, force=options.force)
    # compare the embeddings of several texts
    name, similarity = session.similarity_fn_name, None
    if EMBEDDING in result and len(texts) > 1 and "binary" not in options.embedding_precision:
        vectors = result[EMBEDDING].astype(np.float64)
        similarity = similarities(vectors) if name == "cosine" else session.similarity(vectors, vectors)
    return Answer(directory, session.providers, list(documents), result, similarity, name, options.query, ranking)


def _of_texts(
    session: Session, options: RunOptions, progress: Progress | None, texts: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Vectors by `Session.encode` where the bundle or an option is about them, else the graph's outputs."""
    only = list(options.only) or None
    embeds = session.manifest.text_rules is not None and only in (None, [EMBEDDING], [TOKEN_EMBEDDINGS])
    if options.about_vectors or embeds:
        return _encoded(session, options, progress, {"inputs": texts})
    return session.run_texts(texts, truncate=options.truncate, outputs=only, adapter=options.adapter)


def _are_pages(session: Session, files: Mapping[str, Any], only: Sequence[str], *, about_texts: bool) -> bool:
    """Whether pictures are pages that the bundle has vectors of; PosexportError where others have options of texts."""
    of_pages = "images" in files and not only and pages_of(session.manifest.text_rules) is not None
    if files and not of_pages and about_texts:
        raise PosexportError(
            "--query, --truncate and the options for vectors are for texts, and for pictures of models that find pages "
            "by them; leave them out"
        )
    return of_pages


def _check(options: RunOptions, texts: Sequence[str]) -> None:
    """Raises PosexportError for options that exclude each other."""
    query, only, has_arrays = options.query, list(options.only), options.inputs is not None
    if bool(texts) == has_arrays:
        if query is not None and not texts:
            raise PosexportError("--query needs what it ranks; give --text, --texts, or pictures of pages (--image)")
        raise PosexportError(f"give --text, --texts or --inputs, {'not both' if texts else 'one of them'}")
    if query is not None and (has_arrays or only or options.about_vectors or options.truncate):
        raise PosexportError(
            "--query ranks texts, or pictures of pages, and gives their scores; leave out --inputs, --only, --truncate "
            "and the options for vectors"
        )
    if query is not None and options.adapters:
        raise PosexportError("--query ranks texts with the base model; leave out --adapter")
    if query is None and options.has("top_k", "activation_fn"):
        raise PosexportError("--top-k and --activation-fn are for scores; leave them out or give --query")
    if options.truncate and not texts:
        raise PosexportError("--truncate shortens texts, not arrays; leave it out or give --text")
    if options.about_vectors and (has_arrays or only not in ([], [EMBEDDING], [TOKEN_EMBEDDINGS])):
        raise PosexportError(
            "--prompt-name, --prefix, --truncate-dim, --normalize-embeddings, --embedding-precision and --output-value "
            f"are for the vectors of texts; leave them out, or give --text and no --only but {EMBEDDING}"
        )


def _encoded(
    session: Session, options: RunOptions, progress: Progress | None, given: dict[str, Any]
) -> dict[str, NDArray[Any]]:
    """The vectors of all texts or pages."""
    vectors: Any = session.encode(
        **given,
        truncate=options.truncate,
        progress=progress,
        adapter=options.adapter,
        **options.prompt,
        **options.vectors,
    )
    return _named(vectors, "colbert_vecs" if options.output_value == COLBERT else TOKEN_EMBEDDINGS)


def _named(vectors: Any, name: str) -> dict[str, NDArray[Any]]:
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
