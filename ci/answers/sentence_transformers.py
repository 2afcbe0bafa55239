"""SentenceTransformer, CrossEncoder and SparseEncoder on a bundle, against the same classes on the PyTorch model."""

import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ci.answers.case import Case

sys.path.insert(0, str(Path(__file__).parents[1] / "lab" / "embedders"))

PART = "sentence-transformers"
#: cosine of a vector with the library's is at least 1 less this
LEAST = 1e-6
#: of the largest element: by what elements of vectors, and scores, differ at most
ROUNDING = 1e-5
EMBEDDERS = ("bert-mean", "bert-all-poolings", "bert-prompt-excluded", "modernbert-cls", "qwen3-lasttoken")
EMBEDDERS += ("embeddinggemma",)
RERANKERS = ("cross-encoder", "cross-encoder-three-labels", "modernbert-reranker", "llama-classifier")
#: transformers 4 feeds a ModernBERT the token types of these tokenizers, which it does not take, and halves the window
#: of a bidirectional Gemma whenever it saves one
SINCE_5 = ("modernbert-cls", "modernbert-reranker", "embeddinggemma")
#: cross-encoders that only version 6 has, of ci/answers/vectors
BY_MODULES = ("logit-score", "logit-score-flat", "pooled-scores")
TOKENS = {"output_value": "token_embeddings"}

Ask = Callable[[Any], Any]


def cases(work: Path) -> Iterator[Case]:
    """A row for every question to a class on a bundle."""
    from corpus import randomise, texts
    from rerankers import MODELS as PAIRED
    from sentence_embedders import MODELS as POOLED
    from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder

    from ci.answers import vectors

    asked = texts()
    old = version("transformers").startswith("4.")
    for name in (name for name in EMBEDDERS if not (old and name in SINCE_5)):
        POOLED[name](work / name, asked, asked[:2], randomise)
        yield from of_model(work / name, SentenceTransformer, embedder_questions(asked))
    POOLED["splade"](work / "splade", asked, asked[:2], randomise)
    yield from of_model(work / "splade", SparseEncoder, sparse_questions(asked))
    for name in (name for name in RERANKERS if not (old and name in SINCE_5)):
        PAIRED[name](work / name, asked, asked[:2], randomise)
        yield from of_model(work / name, CrossEncoder, pair_questions(asked))
    for name in BY_MODULES if not old else ():
        yield from of_model(
            vectors.stored_model(name, fresh(work / "modules" / name)), CrossEncoder, pair_questions(asked)
        )
    yield from made_of_modules(work, asked)
    yield from without_trust(work, SentenceTransformer)


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def of_model(folder: Path, kind: Any, questions: dict[str, Ask]) -> Iterator[Case]:
    """All questions to one class, on the folder and on the bundle that it becomes."""
    import posexport

    bundle = folder.with_name(f"{folder.name}-bundle")
    options: Any = {"target": "cpu", "force": True, "verify": False, "allow_pickle": True}
    posexport.convert(str(folder), bundle, layout="sentence-transformers", **options)
    theirs = kind(str(folder), device="cpu")
    ours = kind(str(bundle), device="cpu", trust_remote_code=True, model_kwargs={"threads": 1})
    for asked, ask in questions.items():
        yield compared(f"{folder.name}: {kind.__name__}{asked}", partial(ask, ours), partial(ask, theirs))


def compared(asked: str, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Case:
    got, expected = ours(), theirs()
    equal, shown = close(got, expected)
    library = f"sentence-transformers {version('sentence-transformers')}"
    return Case(part=PART, asked=asked, library=library, ours=shown, theirs=brief(expected), equal=equal)


def embedder_questions(asked: list[str]) -> dict[str, Ask]:
    quiet = {"show_progress_bar": False}

    def similar(model: Any) -> Any:
        return model.similarity(model.encode_query(asked[:9], **quiet), model.encode_document(asked, **quiet)).numpy()

    def cut(model: Any) -> Any:
        length, model.max_seq_length = model.max_seq_length, 11
        vectors = model.encode(asked, **quiet)
        model.max_seq_length = length
        return vectors

    return {
        ".encode(200 texts of 1 to 2,000 words)": lambda model: model.encode(asked, **quiet),
        ".encode(one text)": lambda model: model.encode(asked[3]),
        ".encode([])": lambda model: model.encode([]),
        ".encode(prompt=)": lambda model: model.encode(asked[:40], prompt="Say: ", **quiet),
        ".encode_query()": lambda model: model.encode_query(asked[:40], **quiet),
        ".encode_document()": lambda model: model.encode_document(asked[:40], **quiet),
        ".similarity()": similar,
        ".encode(normalize_embeddings, truncate_dim)": lambda model: model.encode(
            asked[:40], normalize_embeddings=True, truncate_dim=7, **quiet
        ),
        ".encode(batch_size=7, convert_to_tensor)": lambda model: model.encode(
            asked[:40], batch_size=7, convert_to_tensor=True, **quiet
        ).numpy(),
        ".encode(output_value='token_embeddings')": lambda model: np.concatenate(
            [each.numpy() for each in model.encode(asked[:20], **TOKENS, **quiet)]
        ),
        ".encode(precision='binary')": lambda model: model.encode(asked[:40], precision="binary", **quiet),
        ".max_seq_length": lambda model: model.max_seq_length,
        ".max_seq_length = 11": cut,
        ".get_embedding_dimension()": dimension,
        ".similarity_fn_name": lambda model: model.similarity_fn_name,
        ".prompts": lambda model: sorted(model.prompts.items()),
        ".save_pretrained(), opened again": partial(saved, ask=lambda model: model.encode(asked[:20], **quiet)),
        ".encode(device=['cpu', 'cpu'])": lambda model: model.encode(asked[:10], device=["cpu", "cpu"], **quiet),
    }


def sparse_questions(asked: list[str]) -> dict[str, Ask]:
    def vectors(model: Any, **options: Any) -> Any:
        return model.encode(asked, show_progress_bar=False, **options).to_dense().numpy()

    return {
        ".encode(200 texts)": vectors,
        ".encode(max_active_dims=8)": partial(vectors, max_active_dims=8),
        ".encode_query()": lambda model: model.encode_query(asked[:20]).to_dense().numpy(),
        ".decode()": lambda model: [word for word, _ in model.decode(model.encode(asked[4]), top_k=5)],
        ".similarity()": lambda model: model.similarity(model.encode(asked[:5]), model.encode(asked[5:20])).numpy(),
    }


def pair_questions(asked: list[str]) -> dict[str, Ask]:
    import torch

    pairs = list(zip(asked, [*asked[1:], asked[0]], strict=True))
    questions: dict[str, Ask] = {
        ".predict(200 pairs)": lambda model: model.predict(pairs, show_progress_bar=False),
        ".predict(one pair)": lambda model: model.predict(pairs[5]),
        ".predict(batch_size=3, convert_to_tensor)": lambda model: model.predict(
            pairs[:20], batch_size=3, convert_to_tensor=True
        ).numpy(),
        ".predict(activation_fn=)": lambda model: model.predict(pairs[:20], activation_fn=torch.nn.Tanh()),
        ".predict(apply_softmax)": lambda model: model.predict(pairs[:20], apply_softmax=True),
        ".predict(prompt=)": lambda model: model.predict(pairs[:20], prompt="Ba ce: "),
        ".activation_fn": lambda model: type(model.activation_fn).__name__,
        ".save_pretrained(), opened again": partial(saved, ask=lambda model: model.predict(pairs[:20])),
    }
    return questions | {".rank()": lambda model: ranked(model, asked)}


def ranked(model: Any, asked: list[str]) -> Any:
    """The order of documents; of several labels the sentence that refuses it."""
    try:
        return [each["corpus_id"] for each in model.rank(asked[0], asked[1:30], top_k=9)]
    except ValueError as err:
        return str(err)[:40]


def dimension(model: Any) -> Any:
    name = "get_embedding_dimension"
    return getattr(model, name if hasattr(model, name) else "get_sentence_embedding_dimension")()


def saved(model: Any, ask: Ask) -> Any:
    """The answer of a model that was saved and opened again."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return ask(type(model)(folder, device="cpu", trust_remote_code=True))


def made_of_modules(work: Path, asked: list[str]) -> Iterator[Case]:
    """Bundles as modules, with the library's pooling and projection behind hidden states."""
    import torch
    from sentence_transformers import CrossEncoder, SentenceTransformer

    import posexport
    from posexport.sentence_transformers import Transformer

    source, states = work / "bert-all-poolings", work / "states"
    posexport.convert(str(source), states, task="features", force=True, verify=False)
    theirs = SentenceTransformer(str(source), device="cpu")
    behind = list(theirs.children())[1:]
    ours = SentenceTransformer(modules=[Transformer(states, threads=1), *behind], device="cpu")
    yield compared(
        "SentenceTransformer(modules=[Transformer('states'), Pooling(), Dense(), ...])",
        lambda: ours.encode(asked),
        lambda: theirs.encode(asked),
    )
    embedder = SentenceTransformer(modules=[Transformer(work / "bert-mean-bundle", provider="CPUExecutionProvider")])
    plain = SentenceTransformer(str(work / "bert-mean"), device="cpu")
    yield compared(
        "SentenceTransformer(modules=[Transformer('bundle')])",
        lambda: embedder.encode(asked),
        lambda: plain.encode(asked),
    )
    pairs = list(zip(asked, asked[::-1], strict=True))
    identity = {} if on_model_ready() else {"activation_fn": torch.nn.Identity()}
    scorer = CrossEncoder(modules=[Transformer(work / "cross-encoder-three-labels-bundle")], device="cpu", **identity)
    expected = CrossEncoder(str(work / "cross-encoder-three-labels"), device="cpu")
    yield compared(
        "CrossEncoder(modules=[Transformer('bundle')])", lambda: scorer.predict(pairs), lambda: expected.predict(pairs)
    )


def on_model_ready() -> bool:
    """Whether the library tells modules of their model, which it does since version 6."""
    return int(version("sentence-transformers").partition(".")[0]) > 5


def without_trust(work: Path, kind: Any) -> Iterator[Case]:
    """What versions ask for before they import the module's class; 5 takes a local folder."""
    try:
        kind(str(work / "bert-mean-bundle"), device="cpu")
        answer = "opened"
    except ValueError as err:
        answer = "ValueError" if "trust_remote_code=True" in str(err) else str(err)
    expected = "ValueError" if on_model_ready() else "opened"
    library = f"sentence-transformers {version('sentence-transformers')}"
    asked = "SentenceTransformer(bundle) without trust_remote_code"
    yield Case(part=PART, asked=asked, library=library, ours=answer, theirs=expected, equal=answer == expected)


def close(got: Any, expected: Any) -> tuple[bool, str]:
    """Whether answers are the same: of vectors their cosines, of other numbers the elements."""
    got, expected = (np.asarray(each) if isinstance(each, np.floating) else each for each in (got, expected))
    if not isinstance(expected, np.ndarray) or expected.dtype.kind != "f":
        same = np.array_equal(got, expected) if isinstance(expected, np.ndarray) else got == expected
        return bool(same), brief(got)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False, brief(got)
    if not got.size:
        return True, brief(got)
    worst = float(np.abs(got - expected).max()) / max(1.0, float(np.abs(expected).max()))
    if got.ndim < 2 or got.shape[-1] < 5:
        return worst <= ROUNDING, f"{brief(got)}, off by {worst:.1e}"
    double = [each.astype(np.float64) for each in (got, expected)]
    lengths = np.linalg.norm(double[0], axis=-1) * np.linalg.norm(double[1], axis=-1)
    cosine = float(((double[0] * double[1]).sum(-1) / np.maximum(lengths, 1e-30)).min())
    return cosine >= 1 - LEAST and worst <= ROUNDING, f"{brief(got)}, cosine 1 - {1 - cosine:.1e}, off by {worst:.1e}"


def brief(answer: Any) -> str:
    return f"{answer.dtype} {list(answer.shape)}" if isinstance(answer, np.ndarray) else repr(answer)
