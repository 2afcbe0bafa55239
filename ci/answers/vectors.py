"""Vectors, scores and rankings: `posexport.Session` against sentence-transformers 6.

``python -m ci.answers.vectors --golden``: writes tests/answers/vectors from the checkpoints of tests/embedders and
tests/rerankers.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import posexport
from ci.answers import vector_calls
from ci.answers.case import Case
from ci.answers.vector_calls import Call

TESTS = Path(__file__).parents[2] / "tests"
STORED = TESTS / "answers" / "vectors"
#: a CrossEncoder's prompts
PROMPTS = {"prompts": {"first": "ba ce: ", "other": "Search. "}, "default_prompt_name": "first"}


def embedder(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def cross_encoder(folder: Path) -> Any:
    from sentence_transformers import CrossEncoder

    return CrossEncoder(str(folder), device="cpu")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A checkpoint of the tests: its folder, how the library opens it, what is asked, and what a copy has beside it.

    ``changes``: keys of JSON files, new or added, or whole texts. ``weights``: tensors that are drawn, by their shapes.
    """

    folder: str
    opener: Callable[[Path], Any]
    calls: Mapping[str, Call]
    changes: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    task: str | None = None


PLAIN = {name: vector_calls.VECTORS[name] for name in ("texts", "one text", "prompt")}
FEW = {name: vector_calls.SCORES[name] for name in ("pairs", "one pair", "apply_softmax", "prompt", "no prompt")}
RANKED = FEW | {"rank, top_k": vector_calls.RANKING["rank, top_k"]} | vector_calls.WITH_PROMPTS
FORWARD = {"method": "forward", "method_output_name": "logits"}
PACKAGE = "sentence_transformers."
SETTINGS = {"model_type": "CrossEncoder", **PROMPTS}


def modules(*kinds: str) -> list[dict[str, Any]]:
    """The content of a modules.json; the first module is at the top."""
    names = [kind.rpartition(".")[2] for kind in kinds]
    paths = ["", *(f"{number}_{name}" for number, name in enumerate(names[1:], 1))]
    return [
        {"idx": number, "name": str(number), "path": path, "type": PACKAGE + kind}
        for number, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]


LOGIT_SCORE = modules("base.modules.transformer.Transformer", "cross_encoder.modules.logit_score.LogitScore")
POOLED = modules(
    "base.modules.transformer.Transformer",
    "sentence_transformer.modules.pooling.Pooling",
    "base.modules.dense.Dense",
    "sentence_transformer.modules.layer_norm.LayerNorm",
    "base.modules.dense.Dense",
)
STRUCTURED = """{%- set system = messages | selectattr("role", "eq", "system") | list -%}
<|im_start|>{{ system[0].content[0].text if system else "Judge." }}<|im_end|>
<Query>: {{ (messages | selectattr("role", "eq", "query") | first).content[0].text }}
<Document>: {{ (messages | selectattr("role", "eq", "document") | first).content[0].text }}<|im_end|>
<|im_start|>answer ba:
"""
FLAT = """{%- for message in messages %}<|im_start|>{{ message["role"] }} {{ message["content"] }}
{% endfor %}{% if 'document' and 'query' and add_generation_prompt %}<|im_start|>{{ word }}{% endif %}"""
TEXTS = "sentence_bert_config.json"


def answering(template: str, texts: dict[str, Any], score: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """The files of a reranker with LogitScore and a chat template."""
    return {
        "modules.json": LOGIT_SCORE,
        TEXTS: {"transformer_task": "text-generation", "module_output_name": "causal_logits", **texts},
        "1_LogitScore/config.json": {"module_input_name": "causal_logits", **score},
        "config_sentence_transformers.json": {"model_type": "CrossEncoder", **settings},
        "chat_template.jinja": template,
        "tokenizer_config.json": {"model_max_length": 150},
    }


GOLDEN: dict[str, Stored] = {
    "embedder": Stored(folder="embedders/embeddinggemma", opener=embedder, calls=vector_calls.VECTORS),
    "reranker": Stored(
        folder="rerankers/cross-encoder",
        opener=cross_encoder,
        calls=vector_calls.SCORES | vector_calls.RANKING | vector_calls.WITH_PROMPTS,
        changes={"config_sentence_transformers.json": PROMPTS},
    ),
    "bidirectional": Stored(
        folder="embedders/qwen3-lasttoken", opener=embedder, calls=PLAIN, changes={"config.json": {"is_causal": False}}
    ),
    "first-token": Stored(
        folder="embedders/qwen3-lasttoken",
        opener=embedder,
        calls=PLAIN,
        changes={
            "1_Pooling/config.json": {"pooling_mode": "cls", "pooling_mode_lasttoken": False},
            "tokenizer_config.json": {"padding_side": "left"},
            "config.json": {"is_causal": False},
        },
    ),
    "logit-score": Stored(
        folder="rerankers/qwen3-reranker",
        opener=cross_encoder,
        calls=RANKED,
        changes=answering(
            STRUCTURED,
            {"modality_config": {"text": FORWARD, "message": FORWARD | {"format": "structured"}}},
            {"true_token_id": 7, "false_token_id": 11},
            **PROMPTS,
        ),
    ),
    "logit-score-flat": Stored(
        folder="rerankers/qwen3-reranker",
        opener=cross_encoder,
        calls=FEW,
        changes=answering(
            FLAT,
            {
                "modality_config": {"text": FORWARD, "message": FORWARD | {"format": "auto"}},
                "processing_kwargs": {
                    "text": {"max_length": 90},
                    "chat_template": {"add_generation_prompt": True, "word": "ba ce", "restore_suffix": False},
                },
            },
            {"true_token_id": 9, "false_token_id": None},
            activation_fn="torch.nn.modules.linear.Identity",
        ),
    ),
    "logit-score-of-texts": Stored(
        folder="rerankers/qwen3-reranker",
        opener=cross_encoder,
        calls=FEW,
        changes=answering(
            STRUCTURED, {"modality_config": {"text": FORWARD}}, {"true_token_id": 9, "false_token_id": 5}
        ),
    ),
    "pooled-scores": Stored(
        folder="rerankers/cross-encoder",
        opener=cross_encoder,
        calls=FEW | vector_calls.WITH_PROMPTS,
        changes={
            "modules.json": POOLED,
            TEXTS: {
                "transformer_task": "feature-extraction",
                "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
                "module_output_name": "token_embeddings",
            },
            "1_Pooling/config.json": {"embedding_dimension": 24, "pooling_mode": ["cls", "mean"]},
            "2_Dense/config.json": {
                "in_features": 48,
                "out_features": 20,
                "bias": False,
                "activation_function": "torch.nn.modules.activation.GELU",
            },
            "3_LayerNorm/config.json": {"dimension": 20},
            "4_Dense/config.json": {
                "in_features": 20,
                "out_features": 3,
                "activation_function": "torch.nn.modules.linear.Identity",
                "module_output_name": "scores",
            },
            "config_sentence_transformers.json": SETTINGS | {"activation_fn": "torch.nn.modules.activation.Tanh"},
        },
        weights={
            "2_Dense": {"linear.weight": (20, 48)},
            "3_LayerNorm": {"norm.weight": (20,), "norm.bias": (20,)},
            "4_Dense": {"linear.weight": (3, 20), "linear.bias": (3,)},
        },
    ),
}


def stored_model(name: str, work: Path) -> Path:
    """The folder of a golden checkpoint, a copy in ``work`` where something is changed."""
    from safetensors.numpy import save_file

    stored = GOLDEN[name]
    source = TESTS / stored.folder / "model"
    if not stored.changes:
        return source
    shutil.copytree(source, work / name)
    for file, values in stored.changes.items():
        path = work / name / file
        path.parent.mkdir(exist_ok=True)
        if isinstance(values, dict):
            values = (json.loads(path.read_text()) if path.exists() else {}) | values
        path.write_text(values if isinstance(values, str) else json.dumps(values))
    for number, (folder, shapes) in enumerate(stored.weights.items()):
        rng = np.random.default_rng(number)
        drawn = {key: 0.5 * rng.standard_normal(shape, dtype=np.float32) for key, shape in shapes.items()}
        save_file(drawn, work / name / folder / "model.safetensors")
    return work / name


def texts_of(name: str) -> list[str]:
    """The texts that are asked of a golden checkpoint, short ones."""
    texts: list[str] = json.loads((TESTS / GOLDEN[name].folder / ".." / "texts.json").read_text())
    return [text[:300] for text in texts]


def asked(model: Any, theirs: Any, calls: Mapping[str, Call], texts: list[str], part: str) -> Iterator[Case]:
    """A row for each call."""
    library = f"sentence-transformers {version('sentence-transformers')}"
    for name, call in calls.items():
        right, got = (vector_calls.as_arrays(call(each, texts)) for each in (theirs, model))
        wrong = vector_calls.difference(got, right)
        yield Case(
            part=part, asked=name, library=library, ours=wrong or "the same", theirs=shape(right), equal=not wrong
        )


def shape(arrays: list[np.ndarray]) -> str:
    return ", ".join(f"{each.dtype} {list(each.shape)}" for each in arrays[:4])


#: of a model, how many texts are asked: every model a few, one as many as an evaluation has
MANY = 200


def many_texts() -> list[str]:
    """Of 1 to 700 words, empty and repeated ones, other scripts and control characters."""
    words = [word for name in GOLDEN for text in texts_of(name) for word in text.split()]
    rng = np.random.default_rng(11)
    lengths = np.unique(np.geomspace(1, 700, 400).astype(int))
    drawn = [" ".join(rng.choice(words, size=rng.choice(lengths))) for _ in range(MANY - 8)]
    return [*drawn, "", "a", " b ", "漢字 e\u0301 é", "\u200d😀", "\t\n", drawn[0], "x" * 3000]


MANY_CALLS: dict[str, Call] = {
    f"{MANY} texts": lambda model, texts: model.encode(texts),
    f"{MANY} texts, a prompt, normalised": lambda model, texts: model.encode_query(texts, normalize_embeddings=True),
    f"{MANY} texts, truncated, uint8": lambda model, texts: model.encode(texts, truncate_dim=9, precision="uint8"),
    f"{MANY} texts, ubinary": lambda model, texts: model.encode(texts, precision="ubinary"),
}


def cases(work: Path) -> Iterator[Case]:
    """Every call on every checkpoint; of version 6, whose files older versions do not read."""
    if int(version("sentence-transformers").partition(".")[0]) < 6:
        return
    for name, stored in GOLDEN.items():
        folder = stored_model(name, work)
        posexport.convert(str(folder), work / f"{name}.bundle", task=stored.task, target="cpu", verify=False)
        session, theirs = posexport.load(work / f"{name}.bundle"), stored.opener(folder)
        yield from asked(session, theirs, stored.calls, texts_of(name), f"vectors: {name}")
        if name == "embedder":
            yield from asked(session, theirs, MANY_CALLS, many_texts(), f"vectors: {name}")


def golden(into: Path) -> None:
    """Writes the library's answers."""
    into.mkdir(parents=True, exist_ok=True)
    for name, stored in GOLDEN.items():
        with tempfile.TemporaryDirectory() as work:
            model = stored.opener(stored_model(name, Path(work)))
            answers = {call: vector_calls.as_arrays(ask(model, texts_of(name))) for call, ask in stored.calls.items()}
        arrays = {f"{call}.{number}": each for call, found in answers.items() for number, each in enumerate(found)}
        np.savez_compressed(into / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    versions = {name: version(name) for name in ("sentence-transformers", "transformers", "torch")}
    (into / "versions.json").write_text(json.dumps(versions) + "\n")


if __name__ == "__main__" and "--golden" in sys.argv:
    golden(STORED)
