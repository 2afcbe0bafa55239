"""Tiny checkpoints of transformers: a trained tokenizer, sizes that cannot be confused, weights by `seeded`."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ci.answers.seeded import refill

CORPUS = """Wolfgang lives in Berlin and works for the river police.
The quick brown fox jumps over the lazy dog, and nobody in Paris saw it.
My name is Clara; I live in Montreal, near the old harbour, with three cats.
Translate English to German: the house is wonderful. Summarize: the report was long and it said little.
What do cats eat? Mice, mostly. What is the capital of France? Paris is the capital of France.
A red bicycle stood against the wall of the library; rain fell on its saddle all night.
She said that the engineers had tested the bridge, and that it would carry forty tons.
Das Haus ist wunderbar. Der Zug nach Hamburg kommt um acht Uhr. Où est la gare, s'il vous plaît ?
This example is about sports, politics, music or science. It was a joy from start to end; I'd see it again.
Machine learning models read tokens, not words: un-believ-able, isn't it? 1,234.50 dollars, 7 o'clock.
""".strip().split("\n")


@functools.cache
def wordpiece() -> Tokenizer:
    """As of BERT: lower case, ``##`` before what continues a word."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=157, special_tokens=special))
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


@functools.cache
def byte_bpe(*, roberta: bool) -> Tokenizer:
    """As of GPT-2 and, with marks at both ends, of RoBERTa and BART."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if roberta else ["<|endoftext|>", "<|user|>", "<|assistant|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=331, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if roberta:
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@functools.cache
def unigram(*, languages: tuple[str, ...] = ()) -> Tokenizer:
    """As of T5, and with codes of languages of mBART: pieces with a blank before a word."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace("''", '"')
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"] if languages else ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=149, special_tokens=[*special, *languages], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    end = tokenizer.token_to_id("</s>")
    if languages:
        code = tokenizer.token_to_id(languages[0])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A </s> {languages[0]}",
            pair=f"$A $B </s> {languages[0]}",
            special_tokens=[("</s>", end), (languages[0], code)],
        )
    else:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", end)]
        )
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


BERT_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
ROBERTA_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
T5_TOKENS = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
MBART_TOKENS = {**ROBERTA_TOKENS, "mask_token": None}
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if not loop.last or add_generation_prompt %}"
    "<|endoftext|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build(
    directory: Path,
    auto: str,
    config: dict[str, Any],
    tokenizer: Tokenizer,
    tokens: dict[str, Any],
    generation: dict[str, Any] | None = None,
    **tokenizer_config: Any,
) -> Path:
    """A checkpoint in ``directory``: of transformers' class ``auto`` with ``config``, and a fast tokenizer."""
    import transformers

    kind = config.pop("model_type")
    made = transformers.AutoConfig.for_model(kind, **config)
    model = getattr(transformers, auto).from_config(made)
    for name, value in (generation or {}).items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(directory)
    refill(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    stated = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{name: token for name, token in tokens.items() if token is not None},
        **tokenizer_config,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(stated, indent=1) + "\n")
    return directory


NER = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
NLI = ["contradiction", "neutral", "entailment"]
BERT = {
    "model_type": "bert",
    "vocab_size": 157,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 29,
    "max_position_embeddings": 70,
    "pad_token_id": 0,
}
ROBERTA = {
    **BERT,
    "model_type": "roberta",
    "vocab_size": 331,
    "max_position_embeddings": 72,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
DISTILBERT = {
    "model_type": "distilbert",
    "vocab_size": 157,
    "dim": 24,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 29,
    "max_position_embeddings": 70,
}
DEBERTA = {
    **BERT,
    "model_type": "deberta-v2",
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 331,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 3,
    "n_positions": 90,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 331,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 29,
    "max_position_embeddings": 120,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
T5 = {
    "model_type": "t5",
    "vocab_size": 149,
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 29,
    "num_layers": 2,
    "num_heads": 3,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "task_specific_params": {
        "summarization": {"prefix": "Summarize: ", "max_length": 18, "num_beams": 2, "early_stopping": True},
        "translation_en_to_de": {"prefix": "Translate English to German: ", "max_length": 15, "num_beams": 3},
    },
}
BART = {
    "model_type": "bart",
    "vocab_size": 331,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 31,
    "max_position_embeddings": 90,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
MARIAN = {**BART, "model_type": "marian", "vocab_size": 149, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 0}
MARIAN |= {"decoder_start_token_id": 0, "forced_eos_token_id": 1}
MBART = {**BART, "model_type": "mbart", "vocab_size": 149}


def labelled(config: dict[str, Any], labels: list[str], **more: Any) -> dict[str, Any]:
    return {
        **config,
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
        **more,
    }


def _bert(auto: str, config: dict[str, Any], **more: Any) -> Callable[[Path], Path]:
    stated = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"], "model_max_length": 64, **more}
    return lambda at: build(at, auto, dict(config), wordpiece(), BERT_TOKENS, **stated)


def _roberta(auto: str, config: dict[str, Any]) -> Callable[[Path], Path]:
    return lambda at: build(
        at,
        auto,
        dict(config),
        byte_bpe(roberta=True),
        ROBERTA_TOKENS,
        model_max_length=64,
        model_input_names=["input_ids", "attention_mask"],
    )


def _gpt(auto: str, config: dict[str, Any], **generation: Any) -> Callable[[Path], Path]:
    tokens = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    return lambda at: build(
        at,
        auto,
        dict(config),
        byte_bpe(roberta=False),
        tokens,
        generation,
        chat_template=TEMPLATE,
        model_input_names=["input_ids", "attention_mask"],
    )


#: by name: what writes the checkpoint
MODELS: dict[str, Callable[[Path], Path]] = {
    "bert-classes": _bert("AutoModelForSequenceClassification", labelled(BERT, ["NEGATIVE", "NEUTRAL", "POSITIVE"])),
    "distilbert-multi": _bert(
        "AutoModelForSequenceClassification",
        labelled(DISTILBERT, ["toxic", "insult", "threat"], problem_type="multi_label_classification"),
        model_input_names=["input_ids", "attention_mask"],
    ),
    "roberta-one": _roberta(
        "AutoModelForSequenceClassification", labelled(ROBERTA, ["score"], problem_type="regression")
    ),
    "deberta-nli": _bert("AutoModelForSequenceClassification", labelled(DEBERTA, NLI)),
    "bart-nli": _roberta("AutoModelForSequenceClassification", labelled(BART, NLI)),
    "bert-ner": _bert("AutoModelForTokenClassification", labelled(BERT, NER)),
    "roberta-ner": _roberta("AutoModelForTokenClassification", labelled(ROBERTA, NER)),
    "deberta-ner": _bert("AutoModelForTokenClassification", labelled(DEBERTA, NER)),
    "bert-mask": _bert("AutoModelForMaskedLM", BERT),
    "roberta-mask": _roberta("AutoModelForMaskedLM", ROBERTA),
    "bert-features": _bert("AutoModel", BERT),
    "distilbert-features": _bert("AutoModel", DISTILBERT, model_input_names=["input_ids", "attention_mask"]),
    "bert-qa": _bert("AutoModelForQuestionAnswering", BERT),
    "roberta-qa": _roberta("AutoModelForQuestionAnswering", ROBERTA),
    "gpt2": _gpt("AutoModelForCausalLM", GPT2),
    "llama": _gpt("AutoModelForCausalLM", LLAMA, max_new_tokens=9, repetition_penalty=1.3),
    "t5": lambda at: build(
        at, "AutoModelForSeq2SeqLM", dict(T5), unigram(), T5_TOKENS, model_input_names=["input_ids", "attention_mask"]
    ),
    "bart": lambda at: build(
        at,
        "AutoModelForSeq2SeqLM",
        dict(BART),
        byte_bpe(roberta=True),
        ROBERTA_TOKENS,
        {"num_beams": 3, "no_repeat_ngram_size": 2, "max_length": 17},
        model_input_names=["input_ids", "attention_mask"],
    ),
    "marian": lambda at: build(
        at,
        "AutoModelForSeq2SeqLM",
        dict(MARIAN),
        unigram(),
        T5_TOKENS,
        {"num_beams": 2, "max_length": 14, "bad_words_ids": [[0]]},
        model_input_names=["input_ids", "attention_mask"],
    ),
}
