"""What is asked of an embedder and of a reranker, as a user of sentence-transformers writes it.

Each is called with the library's model and with `posexport.Session`: the words are the same. Imports neither.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Call = Callable[[Any, Sequence[str]], Any]


def activation(model: Any, name: str) -> Any:
    """An activation as the library takes it, a module of PyTorch; a session takes its name too."""
    if type(model).__module__.startswith("posexport"):
        return f"torch.nn.{name}"
    import torch

    return getattr(torch.nn, name)()


#: of a model that makes vectors
VECTORS: dict[str, Call] = {
    "texts": lambda model, texts: model.encode(list(texts)),
    "one text": lambda model, texts: model.encode(texts[1]),
    "no texts": lambda model, _: model.encode([]),
    "a tuple": lambda model, texts: model.encode(tuple(texts[:3])),
    "an array": lambda model, texts: model.encode(np.array(texts[:3])),
    "an array of objects": lambda model, texts: model.encode(np.array(texts[:3], dtype=object)),
    "the same text thrice": lambda model, texts: model.encode([texts[0], texts[1], texts[0], texts[0]]),
    "one at a time": lambda model, texts: model.encode(list(texts), batch_size=1, show_progress_bar=False),
    "by position": lambda model, texts: model.encode(texts[:2], "query", None, 1),
    "normalize_embeddings": lambda model, texts: model.encode(texts, normalize_embeddings=True),
    "truncate_dim": lambda model, texts: model.encode(texts, truncate_dim=5, normalize_embeddings=True),
    "no array": lambda model, texts: model.encode(texts[:2], convert_to_numpy=False),
    "float32": lambda model, texts: model.encode(texts, precision="float32"),
    "int8": lambda model, texts: model.encode(texts, precision="int8"),
    "uint8": lambda model, texts: model.encode(texts, precision="uint8", normalize_embeddings=True),
    "binary": lambda model, texts: model.encode(texts, precision="binary"),
    "ubinary": lambda model, texts: model.encode(texts, precision="ubinary", truncate_dim=9),
    "binary of one text": lambda model, texts: model.encode(texts[0], precision="binary"),
    "token_embeddings": lambda model, texts: [
        model.encode(text, output_value="token_embeddings") for text in texts[::5]
    ],
    "prompt_name": lambda model, texts: model.encode(texts, prompt_name="query"),
    "prompt": lambda model, texts: model.encode(texts, prompt="Say: "),
    "no prompt": lambda model, texts: model.encode(texts, prompt=""),
    "encode_query": lambda model, texts: model.encode_query(texts),
    "encode_query, one": lambda model, texts: model.encode_query(texts[0], normalize_embeddings=True),
    "encode_query, another prompt": lambda model, texts: model.encode_query(texts[:2], prompt_name="document"),
    "encode_document": lambda model, texts: model.encode_document(texts),
    "encode_document, a text before": lambda model, texts: model.encode_document(texts[:2], prompt="Say: "),
    "similarity": lambda model, texts: model.similarity(model.encode(texts[:3]), model.encode(texts)),
    "similarity of one": lambda model, texts: model.similarity(model.encode(texts[0]), model.encode(texts)),
    "similarity_pairwise": lambda model, texts: model.similarity_pairwise(
        model.encode(texts), model.encode(texts[::-1])
    ),
}


def pairs_of(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Every text with the next one, the last with the first."""
    return list(zip(texts, [*texts[1:], texts[0]], strict=True))


#: of a model that scores pairs
SCORES: dict[str, Call] = {
    "pairs": lambda model, texts: model.predict(pairs_of(texts)),
    "one pair": lambda model, texts: model.predict((texts[0], texts[1])),
    "one pair as a list": lambda model, texts: model.predict([texts[0], texts[1]]),
    "one pair as an array": lambda model, texts: model.predict(np.array([texts[0], texts[1]])),
    "no pairs": lambda model, _: model.predict([]),
    "lists": lambda model, texts: model.predict([list(pair) for pair in pairs_of(texts[:3])]),
    "an array": lambda model, texts: model.predict(np.array(pairs_of(texts[:3]))),
    "one at a time": lambda model, texts: model.predict(pairs_of(texts), batch_size=1, show_progress_bar=False),
    "no array": lambda model, texts: model.predict(pairs_of(texts[:3]), convert_to_numpy=False),
    "apply_softmax": lambda model, texts: model.predict(pairs_of(texts), apply_softmax=True),
    "prompt": lambda model, texts: model.predict(pairs_of(texts), prompt="Say: "),
    "no prompt": lambda model, texts: model.predict(pairs_of(texts), prompt=""),
} | {
    f"activation_fn {name}": lambda model, texts, name=name: model.predict(
        pairs_of(texts[:3]), activation_fn=activation(model, name)
    )
    for name in ("Identity", "Sigmoid", "Tanh", "ReLU", "SiLU", "Softplus", "LogSigmoid", "Softsign")
}
#: of one that has prompts
WITH_PROMPTS: dict[str, Call] = {
    "prompt_name": lambda model, texts: model.predict(pairs_of(texts), prompt_name="other")
}
#: of one with one label
RANKING: dict[str, Call] = {
    "rank": lambda model, texts: model.rank(texts[0], texts),
    "rank, top_k": lambda model, texts: model.rank(texts[0], texts, top_k=2, return_documents=True),
    "rank, activation_fn": lambda model, texts: model.rank(
        texts[1], texts[2:], activation_fn=activation(model, "Identity"), batch_size=2
    ),
    "rank of nothing": lambda model, texts: model.rank(texts[0], []),
}


def as_arrays(answer: Any) -> list[np.ndarray]:
    """An answer in NumPy: an array as a list of one, a ranking by its places and scores, with texts as they are."""
    if not isinstance(answer, list):
        return [np.asarray(answer)]
    if answer and isinstance(answer[0], dict):
        assert all(list(each) in (["corpus_id", "score"], ["corpus_id", "score", "text"]) for each in answer)
        columns = ("corpus_id", "score", "text")
        return [np.array([each[column] for each in answer]) for column in columns if column in answer[0]]
    return [np.asarray(each) for each in answer]


def difference(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> str:
    """What differs between two answers of `as_arrays`; empty where they are the same.

    Integers and texts must be the same (of 8 bits one in 50 may be one level off), vectors of float32 have a cosine of
    at least 1 - 1e-6, and all numbers are within 1e-5 of theirs (of the largest where that is above 10).
    """
    if len(ours) != len(theirs):
        return f"{len(ours)} arrays, not {len(theirs)}"
    for mine, other in zip(ours, theirs, strict=True):
        if mine.shape != other.shape or mine.dtype.kind != other.dtype.kind:
            return f"{mine.dtype} {list(mine.shape)}, not {other.dtype} {list(other.shape)}"
        if mine.dtype.kind != "f":
            # the largest of an element's values is level 255 or 254, as the last bit of the float decides
            far = mine.astype(np.int64) - other.astype(np.int64) if mine.dtype.kind in "iu" else mine != other
            if np.abs(far).max(initial=0) > (mine.dtype.itemsize == 1) or np.mean(far != 0) > 0.02:
                return f"{int(np.sum(far != 0))} of {far.size} differ"
        elif other.size and (worst := np.abs(mine - other).max()) > 1e-5 * max(1, np.abs(other).max() / 10):
            return f"off by {worst:.1e}"
        elif other.ndim and (least := _cosine(mine, other)) < 1 - 1e-6:
            return f"cosine {least:.8f}"
    return ""


def _cosine(mine: np.ndarray, other: np.ndarray) -> float:
    """The smallest one of vectors of the last axis; 1 where there are none."""
    mine, other = (np.atleast_2d(each.astype(np.float64)) for each in (mine, other))
    if not other.size:
        return 1.0
    lengths = np.linalg.norm(mine, axis=-1) * np.linalg.norm(other, axis=-1)
    return float(np.min(np.where(lengths > 0, (mine * other).sum(-1) / np.maximum(lengths, 1e-30), 1)))
