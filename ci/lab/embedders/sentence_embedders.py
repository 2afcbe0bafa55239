"""Models of sentence-transformers: each is saved, opened again by the library and asked for vectors."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import transformers
from corpus import byte_level, wordpiece
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling
from torch import nn

SIZES = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 40}
BERT = {**SIZES, "vocab_size": 300, "max_position_embeddings": 128, "pad_token_id": 0}
DECODER = {
    **SIZES,
    "vocab_size": 400,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "head_dim": 6,
}
#: what is asked of every model: options of encode
CALLS: list[dict[str, Any]] = [
    {},
    {"normalize_embeddings": True},
    {"truncate_dim": 7, "normalize_embeddings": True},
    {"prompt": "Say: "},
]
PROMPTS = {"query": "Instruct: find it\nQuery: ", "document": ""}
#: that are left out of the pooling
INSTRUCTIONS = {"query": "Ba ceba, fodi: ", "document": "Represent the text:"}


def embedder(
    target: Path,
    corpus: Sequence[str],
    asked: Sequence[str],
    randomise: Callable[..., None],
    *,
    config: transformers.PretrainedConfig,
    tokenizer: Callable[..., Any],
    pooling: str | tuple[str, ...],
    seed: int,
    scale: float = 0.4,
    dense: Sequence[tuple[int, bool, nn.Module]] = (),
    normalise: bool = False,
    length: int | None = None,
    lower: bool = False,
    kind: Any = None,
    old: bool = False,
    include_prompt: bool = True,
    **settings: Any,
) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """One model. ``dense``: output size, bias and activation of projections in turn; ``old``: files as of version 2."""
    model = (kind or transformers.AutoModel.from_config)(config)
    randomise(model, seed, scale)
    with TemporaryDirectory() as plain:
        model.save_pretrained(plain)
        tokenizer(corpus).save_pretrained(plain)
        modules: list[nn.Module] = [Transformer(plain, max_seq_length=length, do_lower_case=lower)]
    width = model.config.hidden_size
    modules.append(Pooling(width, pooling_mode=pooling, include_prompt=include_prompt))
    size = width * (1 if isinstance(pooling, str) else len(pooling))
    for index, (out, bias, activation) in enumerate(dense):
        modules.append(Dense(size, out, bias=bias, activation_function=activation))
        randomise(modules[-1], seed + index + 1, 0.3)
        size = out
    modules += [Normalize()] * normalise
    SentenceTransformer(modules=modules, device="cpu", **settings).save_pretrained(
        str(target), safe_serialization=not old
    )
    if old:
        as_version_2(target, lower)
    opened = SentenceTransformer(str(target), device="cpu")
    calls = [*CALLS, *({"prompt_name": name} for name in settings.get("prompts", {}))]
    return calls, [opened.encode(list(asked), show_progress_bar=False, **call) for call in calls]


def model_of(
    config: transformers.PretrainedConfig,
    tokenizer: Callable[..., Any],
    pooling: str | tuple[str, ...],
    seed: int,
    **settings: Any,
) -> Callable[..., Any]:
    """`embedder` with all but the folder and the texts."""
    return partial(embedder, config=config, tokenizer=tokenizer, pooling=pooling, seed=seed, **settings)


def splade_of(
    target: Path,
    corpus: Sequence[str],
    asked: Sequence[str],
    randomise: Callable[..., None],
    *,
    model: Callable[[], nn.Module],
    seed: int,
    **pooling: Any,
) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """Weights of words."""
    drawn = model()
    randomise(drawn, seed, 0.25)
    with TemporaryDirectory() as plain:
        drawn.save_pretrained(plain)
        wordpiece(corpus).save_pretrained(plain)
        modules = [MLMTransformer(plain), SpladePooling(**pooling)]
        SparseEncoder(modules=modules, device="cpu").save_pretrained(str(target))
    opened = SparseEncoder(str(target), device="cpu")
    return [{}], [opened.encode(list(asked), convert_to_sparse_tensor=False, show_progress_bar=False).numpy()]


def as_version_2(target: Path, lower: bool) -> None:
    """The files as version 2 wrote them."""
    modules = json.loads((target / "modules.json").read_text())
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    (target / "modules.json").write_text(json.dumps(modules))
    path = target / "1_Pooling" / "config.json"
    pooling = json.loads(path.read_text())
    modes = pooling["pooling_mode"] if isinstance(pooling["pooling_mode"], list) else [pooling["pooling_mode"]]
    keys = {
        "cls": "cls_token",
        "max": "max_tokens",
        "mean": "mean_tokens",
        "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "weightedmean": "weightedmean_tokens",
        "lasttoken": "lasttoken",
    }
    flags = {f"pooling_mode_{key}": mode in modes for mode, key in keys.items()}
    path.write_text(json.dumps({"word_embedding_dimension": pooling["embedding_dimension"], **flags}))
    tokenizer = json.loads((target / "tokenizer_config.json").read_text())
    texts = {"max_seq_length": tokenizer.get("model_max_length"), "do_lower_case": lower}
    (target / "sentence_bert_config.json").write_text(json.dumps(texts))
    if lower:
        # as the library lowers since version 5, it has written a tokenizer that does so itself
        tokenizer = json.loads((target / "tokenizer.json").read_text())
        tokenizer["normalizer"]["normalizers"].pop(0)
        (target / "tokenizer.json").write_text(json.dumps(tokenizer))


splade = partial(splade_of, model=lambda: transformers.BertForMaskedLM(transformers.BertConfig(**BERT)))
ALL = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_qwen3 = transformers.Qwen3Config(**DECODER)
_gemma = transformers.Gemma3TextConfig(
    **DECODER,
    use_bidirectional_attention=True,
    sliding_window=16,
    layer_types=["sliding_attention", "full_attention"],
    query_pre_attn_scalar=6,
)
_t5 = transformers.T5Config(
    vocab_size=400, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4, pad_token_id=0, eos_token_id=2
)
_qwen3_embedder = partial(embedder, config=_qwen3, pooling="lasttoken", seed=8, normalise=True, prompts=PROMPTS)

MODELS: dict[str, Callable[..., Any]] = {
    "bert-mean": model_of(
        transformers.BertConfig(**BERT), wordpiece, "mean", 1, length=40, lower=True, normalise=True, old=True
    ),
    "bert-all-poolings": model_of(
        transformers.BertConfig(**BERT),
        wordpiece,
        ALL,
        2,
        dense=[(30, True, nn.Tanh()), (11, False, nn.GELU())],
        normalise=True,
    ),
    "bert-concatenated": model_of(
        transformers.BertConfig(**BERT),
        wordpiece,
        ("mean", "lasttoken"),
        3,
        length=64,
        old=True,
        prompts={"a": "about: ", "b": "Say "},
        default_prompt_name="b",
    ),
    "distilbert-max": model_of(
        transformers.DistilBertConfig(
            vocab_size=300, max_position_embeddings=100, dim=24, n_heads=4, n_layers=2, hidden_dim=40, pad_token_id=0
        ),
        wordpiece,
        "max",
        4,
        truncate_dim=13,
    ),
    "modernbert-cls": model_of(
        transformers.ModernBertConfig(**{**BERT, "max_position_embeddings": 256, "local_attention": 16}),
        wordpiece,
        "cls",
        5,
        scale=0.25,
        similarity_fn_name="dot",
    ),
    "sentence-t5": model_of(
        _t5,
        byte_level,
        "mean",
        6,
        kind=transformers.T5EncoderModel,
        scale=0.25,
        dense=[(17, False, nn.Identity())],
        normalise=True,
        length=256,
    ),
    "gpt2-weightedmean": model_of(
        transformers.GPT2Config(
            vocab_size=400,
            n_positions=512,
            n_embd=24,
            n_layer=2,
            n_head=4,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        byte_level,
        "weightedmean",
        7,
        scale=0.2,
    ),
    "qwen3-lasttoken": partial(_qwen3_embedder, tokenizer=partial(byte_level, side="left")),
    "qwen3-right": partial(_qwen3_embedder, tokenizer=partial(byte_level, side="right"), length=100),
    "mistral-lasttoken": model_of(
        transformers.MistralConfig(**{**DECODER, "sliding_window": 64}),
        partial(byte_level, side="left", begin=True),
        "lasttoken",
        9,
        normalise=True,
    ),
    # prompts that are attended to and not pooled
    "instructor": model_of(
        _t5,
        byte_level,
        "mean",
        13,
        kind=transformers.T5EncoderModel,
        scale=0.25,
        dense=[(24, False, nn.Identity())],
        normalise=True,
        length=256,
        include_prompt=False,
        prompts=INSTRUCTIONS,
    ),
    "bert-prompt-excluded": model_of(
        transformers.BertConfig(**BERT),
        wordpiece,
        ALL,
        14,
        include_prompt=False,
        prompts=INSTRUCTIONS,
        default_prompt_name="query",
    ),
    "qwen3-prompt-excluded": model_of(
        _qwen3, partial(byte_level, side="left", end=False), ALL, 15, include_prompt=False, prompts=INSTRUCTIONS
    ),
    "splade": partial(splade, seed=11),
    "splade-sum": partial(splade, seed=12, pooling_strategy="sum", activation_function="log1p_relu"),
    "embeddinggemma": model_of(
        _gemma,
        partial(byte_level, begin=True),
        "mean",
        10,
        dense=[(50, False, nn.Identity()), (24, False, nn.Identity())],
        normalise=True,
        prompts={"query": "task: search result | query: ", "document": "title: none | text: "},
        default_prompt_name="document",
        truncate_dim=16,
    ),
}
