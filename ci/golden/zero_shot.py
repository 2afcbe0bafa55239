"""Writes tests/zero_shot: tiny folders of gliner and of gliclass, and what these libraries answer with them.

``python -m ci.golden.zero_shot [NAME ...]``, where gliner 0.2.29 and gliclass 0.1.21 are installed; gliner asks for a
transformers before 5.17, and works with 5.24 all the same.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

FOLDER = Path(__file__).parents[2] / "tests" / "zero_shot"
DEBERTA: dict[str, Any] = {
    "model_type": "deberta-v2",
    "hidden_size": 20,
    "num_attention_heads": 5,
    "num_hidden_layers": 2,
    "intermediate_size": 28,
    "position_buckets": 4,
    "max_position_embeddings": 16,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
    "pad_token_id": 0,
}
BERT: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": 20,
    "num_attention_heads": 5,
    "num_hidden_layers": 2,
    "intermediate_size": 28,
    "max_position_embeddings": 90,
    "pad_token_id": 0,
}
MODERNBERT: dict[str, Any] = {
    "model_type": "modernbert",
    "hidden_size": 20,
    "num_attention_heads": 5,
    "num_hidden_layers": 3,
    "intermediate_size": 28,
    "global_attn_every_n_layers": 2,
    "local_attention": 8,
    "max_position_embeddings": 120,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id"), 0),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 1),
}
#: name -> the encoder and the rest of gliner_config.json
GLINER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gliner-span": (DEBERTA, {"span_mode": "markerV0", "hidden_size": 12}),
    "gliner-token": (MODERNBERT, {"span_mode": "token_level", "hidden_size": 12, "num_rnn_layers": 2}),
    "gliner-marker": (
        BERT,
        {
            "span_mode": "marker",
            "hidden_size": 20,
            "num_rnn_layers": 0,
            "embed_ent_token": False,
            "subtoken_pooling": "last",
        },
    ),
}
#: name -> the encoder and the rest of config.json of gliclass
GLICLASS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gliclass-dot": (DEBERTA, {"scorer_type": "simple", "prompt_first": True, "normalize_features": True}),
    "gliclass-weighted": (
        MODERNBERT,
        {
            "scorer_type": "weighted-dot",
            "prompt_first": True,
            "pooling_strategy": "avg",
            "class_token_pooling": "average",
            "extract_text_features": True,
            "embed_class_token": False,
        },
    ),
    "gliclass-mlp": (BERT, {"scorer_type": "mlp", "embed_class_token": False, "pooling_strategy": "avg"}),
}
#: of weights with which some spans and labels fit, and some do not
SEEDS = {"gliner-span": 9, "gliner-token": 9, "gliner-marker": 9, **dict.fromkeys(GLICLASS, 1)}
CLASSIFIED = [
    {"threshold": 0.5},
    {"threshold": 0.0},
    {"classification_type": "single-label", "prompt": "What is it? "},
    {"threshold": 0.3, "prompt": "Sort: "},
]
TEXTS = [
    "Ann lives in New-York city.",
    "hi",
    " \n",
    "The person, org_42 and a city in a sentence of many words: more than eleven!",
    "x",
]
LABELS: list[Any] = [["person"], ["person", "city", "a big org"], {"p": "a person in the city", "q": "the org"}]
OPTIONS = [
    {"threshold": 0.5},
    {"threshold": 0.2, "flat_ner": False},
    {"threshold": 0.4, "multi_label": True},
    {"threshold": 0.1, "flat_ner": False, "multi_label": True},
]


def tokenizer(folder: Path, marks: list[str]) -> Any:
    """A tokenizer of letters and a few words, with ``marks`` as special tokens; it is saved in ``folder``."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?-_':"
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    words += ["the", "in", "##er", "##ing", "per", "##son", "city", "org"]
    made = Tokenizer(models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, **{f"{name}_token": f"[{name.upper()}]" for name in ("unk", "pad", "cls", "sep", "mask")}
    )
    fast.add_tokens(marks, special_tokens=True)
    fast.save_pretrained(folder)
    return fast


def draw(model: torch.nn.Module, seed: int) -> None:
    """Weights so large that the order of tokens matters."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=random)
            if parameter.dim() < 2:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(noise * 1.6 / parameter.shape[-1] ** 0.5)


def save(model: torch.nn.Module, folder: Path) -> None:
    tensors = {name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")


def gliner(name: str) -> None:
    from gliner.model import GLiNER

    folder, (encoder, more) = FOLDER / name, GLINER[name]
    folder.mkdir(parents=True, exist_ok=True)
    fast = tokenizer(folder, ["[FLERT]", "<<ENT>>", "<<SEP>>"])
    config = {
        "model_type": "gliner",
        "model_name": "microsoft/deberta-v3-small",
        "max_width": 3,
        "max_len": 11,
        "class_token_index": fast.convert_tokens_to_ids("<<ENT>>"),
        "vocab_size": len(fast),
        "encoder_config": {**encoder, "vocab_size": len(fast)},
        **more,
    }
    path = folder / "gliner_config.json"
    path.write_text(json.dumps(config, indent=1))
    kind = GLiNER._get_gliner_class(GLiNER._config_from_dict(json.loads(path.read_text())))  # noqa: SLF001
    torch.manual_seed(0)
    made = kind(kind._load_config(path), tokenizer=fast, backbone_from_pretrained=False)  # noqa: SLF001
    draw(made.model, SEEDS[name])
    save(made.model, folder)
    library = GLiNER.from_pretrained(str(folder), local_files_only=True, strict=True)
    # the tensors of one batch, with padding
    prepared = library.prepare_batch(TEXTS, LABELS[1])
    batch = library.collate_batch(prepared["input_x"], prepared["entity_types"])
    logits = library.run_batch(batch)[0]
    tensors = {key: batch[key] for key in ("input_ids", "attention_mask", "words_mask")}
    save_file({**tensors, "logits": logits.clone()}, folder / "expected.safetensors")
    answers = [
        {"labels": labels, "options": options, "answers": library.inference(TEXTS, labels, **options)}
        for labels in LABELS
        for options in OPTIONS
    ]
    (folder / "expected.json").write_text(json.dumps({"texts": TEXTS, "cases": answers}))
    print(name, [sum(map(len, case["answers"])) for case in answers])


def gliclass(name: str) -> None:
    from gliclass import GLiClassModel, GLiClassModelConfig, ZeroShotClassificationPipeline

    folder, (encoder, more) = FOLDER / name, GLICLASS[name]
    folder.mkdir(parents=True, exist_ok=True)
    fast = tokenizer(folder, ["<<LABEL>>", "<<SEP>>", "<<EXAMPLE>>"])
    label, end, example = (fast.convert_tokens_to_ids(f"<<{mark}>>") for mark in ("LABEL", "SEP", "EXAMPLE"))
    config = GLiClassModelConfig(
        encoder_config={**encoder, "vocab_size": len(fast)},
        encoder_model="a/b",
        vocab_size=len(fast),
        class_token_index=label,
        text_token_index=end,
        example_token_index=example,
        **more,
    )
    torch.manual_seed(0)
    made = GLiClassModel(config)
    draw(made, SEEDS[name])
    made.save_pretrained(folder)
    library = GLiClassModel.from_pretrained(str(folder), local_files_only=True).eval()
    pipeline = ZeroShotClassificationPipeline(library, fast, device="cpu", progress_bar=False)
    texts, labels = [text for text in TEXTS if text.strip()], [each for each in LABELS if isinstance(each, list)]
    # one text in a call: the library averages over the padding of a batch
    answers = [
        {"labels": each, "options": options, "answers": pipeline(texts, each, batch_size=1, **options)}
        for each in labels
        for options in CLASSIFIED
    ]
    (folder / "expected.json").write_text(json.dumps({"texts": texts, "cases": answers}))
    print(name, [[len(entry) for entry in case["answers"]] for case in answers], answers[1]["answers"])


if __name__ == "__main__":
    for each in sys.argv[1:] or (*GLINER, *GLICLASS):
        (gliner if each in GLINER else gliclass)(each)
