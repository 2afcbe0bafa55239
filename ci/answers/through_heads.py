"""Poolings, projections and scores on model types that posexport converts through transformers."""

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ci.answers.case import Case

sys.path.insert(0, str(Path(__file__).parents[1] / "lab" / "embedders"))

PART = "heads through transformers"
#: of the largest element
ROUNDING = 1e-5
SIZES = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 40}
ENCODER = {**SIZES, "vocab_size": 300, "max_position_embeddings": 160, "pad_token_id": 0}
DECODER = {**SIZES, "vocab_size": 400, "max_position_embeddings": 512, "pad_token_id": 0, "eos_token_id": 2}
DECODER |= {"bos_token_id": 1, "num_key_value_heads": 2, "head_dim": 6}
LOCAL = {"local_attention": 16, "layer_types": ["sliding_attention", "full_attention"]}
#: transformers numbers padded tokens too, so that the library's vector of a text depends on the others of its batch
BY_BATCH = ("biogpt-weightedmean",)
INSTRUCTIONS = {"query": "Ba ceba, fodi: ", "document": "Represent the text:"}


def cases(work: Path) -> Iterator[Case]:
    """A row for every model and call; transformers before 5 has few of these types."""
    import transformers

    if version("transformers").startswith("4."):
        return
    from corpus import randomise, texts

    asked = texts()
    for name, make in {**embedders(transformers), **scorers()}.items():
        calls, answers = make(work / name / "model", asked, asked, randomise)
        yield from of_model(work / name, asked, *(([], []) if name in BY_BATCH else (calls, answers)))
    for name in BY_BATCH:
        yield alone(work / name, asked[:40])
    yield from by_modules(work / "modules", transformers, randomise)


def embedders(transformers: Any) -> dict[str, Callable[..., Any]]:
    from corpus import byte_level, wordpiece
    from sentence_embedders import ALL, model_of, splade_of
    from torch import nn

    left = partial(byte_level, side="left")
    return {
        "eurobert-mean": model_of(
            transformers.EuroBertConfig(**ENCODER, num_key_value_heads=2),
            wordpiece,
            "mean",
            61,
            scale=0.3,
            dense=[(17, True, nn.Tanh())],
            normalise=True,
            length=100,
            prompts={"query": "find: ", "document": ""},
        ),
        "nomic-bert-all-poolings": model_of(
            transformers.NomicBertConfig(**ENCODER), wordpiece, ALL, 62, scale=0.3, lower=True
        ),
        "gte-cls": model_of(
            transformers.GteConfig(**ENCODER), wordpiece, "cls", 63, scale=0.3, similarity_fn_name="dot"
        ),
        "jina-v3-prompt-excluded": model_of(
            transformers.JinaEmbeddingsV3Config(**ENCODER),
            wordpiece,
            ("mean", "cls", "weightedmean"),
            64,
            scale=0.3,
            include_prompt=False,
            prompts=INSTRUCTIONS,
            default_prompt_name="query",
        ),
        "modernbert-decoder-lasttoken": model_of(
            transformers.ModernBertDecoderConfig(**{**DECODER, **LOCAL}),
            left,
            "lasttoken",
            65,
            scale=0.3,
            normalise=True,
        ),
        # every token attends to every other
        "helium-bidirectional": model_of(
            transformers.HeliumConfig(**DECODER, is_causal=False), left, "mean", 68, scale=0.3
        ),
        "biogpt-weightedmean": model_of(transformers.BioGptConfig(**DECODER), left, "weightedmean", 66, scale=0.2),
        "eurobert-splade": partial(
            splade_of,
            model=lambda: transformers.EuroBertForMaskedLM(
                transformers.EuroBertConfig(**ENCODER, num_key_value_heads=2)
            ),
            seed=67,
        ),
    }


def scorers() -> dict[str, Callable[..., Any]]:
    from corpus import byte_level, wordpiece
    from rerankers import cross_encoder, of

    encoder, seeds = partial(cross_encoder, tokenizer=wordpiece), iter(range(71, 99))
    made = {
        "eurobert-reranker": ("EuroBert", {**ENCODER, "num_key_value_heads": 2, "num_labels": 1}),
        "nomic-bert-classifier": ("NomicBert", {**ENCODER, "num_labels": 3}),
        "gte-reranker": ("Gte", {**ENCODER, "num_labels": 1}),
    }
    found: dict[str, Callable[..., Any]] = {
        name: partial(encoder, model=of(f"{kind}ForSequenceClassification", f"{kind}Config", **sizes), seed=next(seeds))
        for name, (kind, sizes) in made.items()
    }
    found["modernbert-decoder-reranker"] = partial(
        cross_encoder,
        model=of(
            "ModernBertDecoderForSequenceClassification",
            "ModernBertDecoderConfig",
            **{**DECODER, **LOCAL, "num_labels": 1},
        ),
        tokenizer=byte_level,
        seed=next(seeds),
        saved_by_library=True,
    )
    return found


def of_model(
    folder: Path, asked: Sequence[str], calls: Sequence[dict[str, Any]], answers: Sequence[np.ndarray]
) -> Iterator[Case]:
    import posexport

    done = posexport.convert(str(folder / "model"), folder / "bundle", target="cpu", force=True)
    session, library = posexport.load(folder / "bundle"), f"sentence-transformers {version('sentence-transformers')}"
    manifest = session.manifest
    told = f"{folder.name}: {manifest.task} of {manifest.source.kind}"
    yield Case(part=PART, asked=f"{told}, proven", library="", ours=done.verdict, theirs="proven", equal=done.good)
    pairs = list(zip(asked, [*asked[1:], asked[0]], strict=True))
    for call, wanted in zip(calls, answers, strict=True):
        renamed = {("normalize_embeddings" if key == "normalize" else key): value for key, value in call.items()}
        got = session.predict(pairs) if manifest.pair_rules else session.encode(list(asked), **renamed)
        off = float(np.abs(got - wanted).max()) / max(1.0, float(np.abs(wanted).max()))
        right = got.shape == wanted.shape and off <= ROUNDING and manifest.source.kind == "transformers"
        shown = f"{got.dtype} {list(got.shape)}, off by {off:.1e}"
        yield Case(
            part=PART, asked=f"{told} {call}", library=library, ours=shown, theirs=list(wanted.shape), equal=right
        )


def alone(folder: Path, asked: Sequence[str]) -> Case:
    """The vectors of a batch, padded on the left, against the library's of each text alone."""
    from sentence_transformers import SentenceTransformer

    import posexport

    got = posexport.load(folder / "bundle").encode(list(asked))
    wanted = SentenceTransformer(str(folder / "model"), device="cpu").encode(list(asked), batch_size=1)
    off = float(np.abs(got - wanted).max()) / max(1.0, float(np.abs(wanted).max()))
    return Case(
        part=PART,
        asked=f"{folder.name}: texts in batches, padded on the left, and the library's one by one",
        library=f"sentence-transformers {version('sentence-transformers')}",
        ours=f"{got.dtype} {list(got.shape)}, off by {off:.1e}",
        theirs=list(wanted.shape),
        equal=got.shape == wanted.shape and off <= ROUNDING,
    )


def by_modules(work: Path, transformers: Any, randomise: Callable[..., None]) -> Iterator[Case]:
    """CrossEncoders of modules: LogitScore on two decoders, and pooled scores, all through transformers."""
    import posexport
    from ci.answers import vectors

    shutil.rmtree(work, ignore_errors=True)
    (work / "olmo3").mkdir(parents=True)
    folders = {name: vectors.stored_model(name, work) for name in ("logit-score", "pooled-scores")}
    olmo = transformers.Olmo3ForCausalLM(
        transformers.Olmo3Config(**DECODER, sliding_window=16, layer_types=LOCAL["layer_types"])
    )
    randomise(olmo, 81, 0.3)
    folders["logit-score, olmo3"] = vectors.stored_model("logit-score", work / "olmo3")
    olmo.save_pretrained(folders["logit-score, olmo3"])
    for name, folder in folders.items():
        done = posexport.convert(
            str(folder), work / f"{name}.bundle", definition="transformers", target="cpu", force=True
        )
        told = f"{name}: {done.manifest.task}"
        yield Case(part=PART, asked=f"{told}, proven", library="", ours=done.verdict, theirs="proven", equal=done.good)
        stored = vectors.GOLDEN[name.partition(",")[0]]
        session, theirs = posexport.load(work / f"{name}.bundle"), stored.opener(folder)
        yield from vectors.asked(
            session, theirs, stored.calls, vectors.texts_of(name.partition(",")[0]), f"{PART}: {told}"
        )
