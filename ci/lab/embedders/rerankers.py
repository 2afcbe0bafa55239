"""Cross-encoders, classifiers and a reranker by yes and no: what the libraries score pairs of texts."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from corpus import byte_level, wordpiece
from sentence_embedders import BERT, DECODER
from sentence_transformers import CrossEncoder

#: what is asked of every model: the pairs of a text with the one behind it
CALLS: list[dict[str, Any]] = [{}]
#: as on Qwen3-Reranker's model card
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


def pairs_of(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Every text with the next one, the last with the first."""
    return list(zip(texts, [*texts[1:], texts[0]], strict=True))


def cross_encoder(
    target: Path,
    corpus: Sequence[str],
    asked: Sequence[str],
    randomise: Callable[..., None],
    *,
    model: Callable[[], torch.nn.Module],
    tokenizer: Callable[..., Any],
    seed: int,
    scale: float = 0.25,
    saved_by_library: bool = False,
    **settings: Any,
) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """One model, saved by transformers or by sentence-transformers."""
    drawn = model()
    randomise(drawn, seed, scale)
    drawn.save_pretrained(target)
    tokenizer(corpus).save_pretrained(target)
    opened = CrossEncoder(str(target), device="cpu", **settings)
    if saved_by_library:
        opened.save_pretrained(str(target))
    opened = CrossEncoder(str(target), device="cpu")
    return CALLS, [opened.predict(pairs_of(asked), show_progress_bar=False)]


def yes_or_no(
    target: Path, corpus: Sequence[str], asked: Sequence[str], randomise: Callable[..., None], *, seed: int
) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """Qwen3-Reranker by the code of its model card: softmax over the logits of no and yes at the last token."""
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**DECODER, tie_word_embeddings=True)).eval()
    randomise(model, seed, 0.25)
    model.save_pretrained(target)
    words = ["<|im_start|>", "<|im_end|>", "yes", "no"]
    tokenizer = byte_level(corpus, side="left", end=False, words=words)
    tokenizer.model_max_length = 400
    tokenizer.save_pretrained(target)
    tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    prefix, suffix = (tokenizer.encode(text, add_special_tokens=False) for text in (PREFIX, SUFFIX))
    calls: list[dict[str, Any]] = [{}, {"instruction": "Find the same words"}]
    answers = []
    for call in calls:
        stated = call.get("instruction", INSTRUCTION)
        scores = []
        for query, document in pairs_of(asked):
            text = f"<Instruct>: {stated}\n<Query>: {query}\n<Document>: {document}"
            room = tokenizer.model_max_length - len(prefix) - len(suffix)
            ids = tokenizer(text, truncation="longest_first", max_length=room)["input_ids"]
            with torch.inference_mode():
                logits = model(torch.tensor([[*prefix, *ids, *suffix]])).logits[0, -1]
            both = logits[tokenizer.convert_tokens_to_ids(["no", "yes"])]
            scores.append(torch.log_softmax(both, -1)[1].exp().item())
        answers.append(np.array(scores, np.float32))
    return calls, answers


def of(name: str, config: str, **settings: Any) -> Callable[[], torch.nn.Module]:
    """A class of transformers with its configuration."""
    return lambda: getattr(transformers, name)(getattr(transformers, config)(**settings))


BART = {
    "vocab_size": 400,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
T5 = {
    "vocab_size": 400,
    "d_model": 24,
    "d_kv": 6,
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}


def _short(corpus: Sequence[str]) -> Any:
    """Of models without a limit of their own: pairs are cut at 384 tokens."""
    tokenizer = byte_level(corpus)
    tokenizer.model_max_length = 384
    return tokenizer


def classifier(
    name: str,
    sizes: dict[str, Any],
    labels: int,
    tokenizer: Callable[..., Any],
    seed: int,
    *,
    by_library: bool = False,
    **settings: Any,
) -> Callable[..., Any]:
    """`cross_encoder` of a class for classification, with ``labels``."""
    model = of(f"{name}ForSequenceClassification", f"{name}Config", **sizes, num_labels=labels, **settings)
    return partial(cross_encoder, model=model, tokenizer=tokenizer, seed=seed, saved_by_library=by_library)


_right = partial(byte_level, begin=True)
_typed = partial(wordpiece, types=True)
_identity = {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.0.1"}
_modernbert = {**BERT, "max_position_embeddings": 256, "local_attention": 16, "classifier_pooling": "mean"}
MODELS: dict[str, Callable[..., Any]] = {
    "cross-encoder": classifier("Bert", BERT, 1, _typed, 20, by_library=True),
    "cross-encoder-identity": classifier("Bert", BERT, 1, wordpiece, 21, sentence_transformers=_identity),
    "cross-encoder-three-labels": classifier("Bert", BERT, 3, _typed, 22),
    "llama-classifier": classifier("Llama", DECODER, 1, _right, 23),
    "qwen3-classifier": classifier("Qwen3", DECODER, 4, partial(byte_level, side="left"), 24),
    "mistral-classifier": classifier("Mistral", DECODER, 1, _right, 25, sliding_window=64),
    "qwen3-reranker": partial(yes_or_no, seed=26),
    # both halves read the text
    "bart-classifier": classifier("Bart", BART, 1, _right, 27),
    "t5-classifier": classifier("T5", T5, 3, _short, 28),
    "umt5-classifier": classifier("UMT5", T5, 1, _short, 29),
    "modernbert-reranker": classifier("ModernBert", _modernbert, 1, wordpiece, 35),
}
#: what posexport is told to make of a checkpoint whose files do not say it
TASKS = {"qwen3-reranker": "text-ranking"}
