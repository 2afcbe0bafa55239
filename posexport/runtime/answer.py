"""What ``posexport run`` does: open a bundle, run texts or a file of arrays, tell a person or a program the result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.runtime.arrays import read_arrays, save_arrays, similarities
from posexport.runtime.batches import Progress
from posexport.runtime.embed import EMBEDDING
from posexport.runtime.embedding_precision import EmbeddingPrecision
from posexport.runtime.late_interaction import TOKEN_EMBEDDINGS
from posexport.runtime.load import load
from posexport.runtime.rank import Ranked
from posexport.runtime.text_file import read_texts
from posexport.targets.precisions import PrecisionName
from posexport.targets.providers import DEFAULT_PROVIDER

#: numbers of an output that a person is shown
SHOWN = 6


@dataclass(frozen=True)
class Answer:
    """The outputs of one run.

    ``similarity`` is there for two or more texts with sentence embeddings, [N, N], by ``similarity_name``; ``ranking``
    where a query was given: the texts in the order of their scores.
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
        """One JSON document: outputs as nested lists, numbers that are not finite as null."""
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
        """A line per output with its shape and first numbers, and a table of similarities; or one per ranked text."""
        if self.ranking is not None:
            return "\n".join(f"{each['score']:10.4f}  {self.texts[each['corpus_id']]}" for each in self.ranking)
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
            for number, row, text in zip(numbers, self.similarity, self.texts, strict=True):
                lines.append("".join([f"{number:>4}", *(f"{cosine:8.4f}" for cosine in row), f"  {text}"]))
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
    outputs: Sequence[str] = (),
    precision: PrecisionName | None = None,
    provider: str = DEFAULT_PROVIDER,
    threads: int = 0,
    truncate: bool = False,
    prompt_name: str | None = None,
    prompt: str | None = None,
    truncate_dim: int | None = None,
    normalize_embeddings: bool = False,
    embedding_precision: EmbeddingPrecision = "float32",
    top_k: int | None = None,
    activation_fn: str | None = None,
    save: Path | None = None,
    force: bool = False,
    provider_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Answer:
    """Run a bundle on texts or a file of arrays (``.npz``, ``.safetensors``, ``.json``); ``save`` writes an ``.npz``.

    Texts may stand in a file, one a line (``texts_file``); ``images`` and ``audio`` are files that `Session.prepare`
    makes arrays of.

    The vectors of texts by a model of sentence-transformers are those of `Session.encode`, whose options these are
    (``embedding_precision``: its ``precision``). With a ``query`` texts are the documents of `Session.rank`, whose
    options the prompts, ``top_k`` and ``activation_fn`` are, and the one output is their scores.

    Raises PosexportError for what `load` and the session refuse, and unless one of ``texts`` and ``inputs`` is given.
    """
    prompts: dict[str, Any] = {"prompt_name": prompt_name, "prompt": prompt}
    only_vectors: dict[str, Any] = {"truncate_dim": truncate_dim, "normalize_embeddings": normalize_embeddings}
    only_vectors["precision"] = embedding_precision
    embed, ranks = prompts | only_vectors, {"top_k": top_k, "activation_fn": activation_fn}
    if top_k is not None and top_k < 1:
        raise PosexportError(f"--top-k must be at least 1, got {top_k}; leave it out for all texts")
    texts = [*texts, *(read_texts(texts_file) if texts_file is not None else ())]
    asked = _any(embed)
    embeds = _any(only_vectors) if query is not None else asked
    files = {kind: [str(file) for file in given] for kind, given in (("images", images), ("audio", audio)) if given}
    if files and (texts or inputs is not None or len(files) > 1):
        raise PosexportError("pictures and sounds are run alone; leave out --text, --texts and --inputs, or --tensors")
    if not files or query is not None or asked or truncate:
        _check(
            texts=texts, inputs=inputs, query=query, outputs=outputs, truncate=truncate, embed=embeds, rank=_any(ranks)
        )
    arrays = None if inputs is None else read_arrays(inputs)
    session = load(
        directory, precision=precision, provider=provider, threads=threads, provider_options=provider_options
    )
    ranking = (
        None if query is None else session.rank(query, texts, progress=progress, activation_fn=activation_fn, **prompts)
    )
    chosen = list(outputs) or None
    if files:
        arrays = session.prepare(**files)
    if ranking is not None:
        result = {"scores": np.array([each["score"] for each in sorted(ranking, key=lambda each: each["corpus_id"])])}
    elif arrays is not None:
        result = session.run(arrays, outputs=chosen)
    elif asked or (session.manifest.text_rules is not None and chosen in (None, [EMBEDDING], [TOKEN_EMBEDDINGS])):
        result = _named(session.encode(texts, truncate=truncate, progress=progress, **embed))
    else:
        result = session.run_texts(texts, truncate=truncate, outputs=chosen)
    if save is not None:
        save_arrays(save, result, force=force)
    name = session.similarity_fn_name
    similarity = None
    if EMBEDDING in result and len(texts) > 1 and "binary" not in embedding_precision:
        vectors = result[EMBEDDING].astype(np.float64)
        similarity = similarities(vectors) if name == "cosine" else session.similarity(vectors, vectors)
    shown = ranking if ranking is None else ranking[:top_k]
    return Answer(directory, session.providers, list(texts), result, similarity, name, query, shown)


def _any(options: Mapping[str, Any]) -> bool:
    """Whether an option is not at its default."""
    return bool(_asked(options))


def _asked(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, False, "float32")}


def _check(
    *,
    texts: Sequence[str],
    inputs: Path | None,
    query: str | None,
    outputs: Sequence[str],
    truncate: bool,
    embed: bool,
    rank: bool,
) -> None:
    """PosexportError for choices that exclude each other; ``embed`` and ``rank``: an option for these is among them."""
    if bool(texts) == (inputs is not None):
        raise PosexportError(f"give --text, --texts or --inputs, {'not both' if texts else 'one of them'}")
    if query is not None and (inputs is not None or outputs or embed or truncate):
        raise PosexportError(
            "--query ranks the texts of --text and gives their scores; leave out --inputs, --output, --truncate and "
            "the options for vectors"
        )
    if rank and query is None:
        raise PosexportError("--top-k and --activation-fn are for scores; leave them out or give --query")
    if truncate and not texts:
        raise PosexportError("--truncate shortens texts, not arrays; leave it out or give --text")
    if embed and (inputs is not None or list(outputs) not in ([], [EMBEDDING], [TOKEN_EMBEDDINGS])):
        raise PosexportError(
            "--prompt-name, --prompt, --truncate-dim, --normalize-embeddings and --embedding-precision are for the "
            f"vectors of texts; leave them out, or give --text and no --output but {EMBEDDING}"
        )


def _named(vectors: NDArray[Any] | list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The vectors of all texts as one output; of a model with a vector for each token an output for each text."""
    if isinstance(vectors, list):
        return {f"{TOKEN_EMBEDDINGS}.{number}": each for number, each in enumerate(vectors)}
    return {EMBEDDING: vectors}
