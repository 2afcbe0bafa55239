"""Folders: a kept tokenizer, a class, and what its configuration files say."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.answers.tokenizer_folders.bases import kept

Content = dict[str, Any]
BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
ROBERTA = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
TEXT = "<|endoftext|>"
GPT2 = dict.fromkeys(("bos_token", "eos_token", "unk_token"), TEXT)
LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@dataclass(frozen=True)
class Folder:
    """``config``: tokenizer_config.json, None: there is none; ``edit`` changes the kept tokenizer's content.

    ``older``: vocab.txt, or vocab.json and merges.txt, in the place of tokenizer.json.
    """

    base: str
    model_type: str
    config: dict[str, Any] | None
    edit: Callable[[Content], None] = lambda _: None
    files: dict[str, Any] = field(default_factory=dict)
    older: bool = False

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        content = kept(self.base)
        self.edit(content)
        files = _vocabulary(content["model"]) if self.older else {"tokenizer.json": content}
        files |= {"config.json": {"model_type": self.model_type}, **self.files}
        if self.config is not None:
            files["tokenizer_config.json"] = self.config
        for name, stored in files.items():
            text = stored if isinstance(stored, str) else json.dumps(stored, ensure_ascii=False)
            (folder / name).write_text(text, encoding="utf-8")
        return folder


def _vocabulary(model: Content) -> dict[str, Any]:
    if "merges" not in model:
        return {"vocab.txt": "".join(f"{token}\n" for token in sorted(model["vocab"], key=model["vocab"].__getitem__))}
    merges = "".join(f"{first} {second}\n" for first, second in model["merges"])
    return {"vocab.json": model["vocab"], "merges.txt": f"#version: 0.2\n{merges}"}


def _roberta(content: Content) -> None:
    content["post_processor"] = {
        "type": "RobertaProcessing",
        "sep": ["</s>", 2],
        "cls": ["<s>", 0],
        "trim_offsets": True,
        "add_prefix_space": False,
    }


def _lower(content: Content) -> None:
    content["normalizer"] |= {"lowercase": True, "strip_accents": None}


def _mpnet(content: Content) -> None:
    _rename(content, {"[CLS]": "<s>", "[SEP]": "</s>", "[PAD]": "<pad>", "[MASK]": "<mask>"})
    content["post_processor"] = {
        "type": "RobertaProcessing",
        "sep": ["</s>", 3],
        "cls": ["<s>", 2],
        "trim_offsets": True,
        "add_prefix_space": False,
    }


def _rename(content: Content, names: dict[str, str]) -> None:
    text = json.dumps(content)
    for old, new in names.items():
        text = text.replace(json.dumps(old), json.dumps(new))
    content.clear()
    content.update(json.loads(text))


def _deberta(content: Content) -> None:
    _rename(content, {"<s>": "[CLS]", "</s>": "[SEP]", "<pad>": "[PAD]", "<unk>": "[UNK]", "<mask>": "[MASK]"})
    content["post_processor"] = _around(["[CLS]", 0], ["[SEP]", 2])
    content["post_processor"]["pair"].pop(3)


def _neox(content: Content) -> None:
    content["normalizer"] = {"type": "NFC"}


def _whisper(content: Content) -> None:
    names = ["<|startoftranscript|>", "<|translate|>", "<|transcribe|>", "<|notimestamps|>"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    count = len(content["model"]["vocab"])
    content["added_tokens"] += [{"id": count + n, "content": name, **flags} for n, name in enumerate(names)]
    first, second = ({"SpecialToken": {"id": names[n], "type_id": 0}} for n in (0, 3))
    content["post_processor"] = _around(None, [TEXT, 5])
    content["post_processor"]["single"][:0] = [first, second]
    content["post_processor"]["pair"] = [
        *(first, second, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}),
        {"SpecialToken": {"id": TEXT, "type_id": 1}},
    ]
    used = {names[n]: {"id": names[n], "ids": [count + n], "tokens": [names[n]]} for n in (0, 3)}
    content["post_processor"]["special_tokens"] |= used


def _around(first: list[Any] | None, last: list[Any] | None) -> Content:
    def part(name: str, kind: int) -> list[Content]:
        text = {"Sequence": {"id": name, "type_id": kind}}
        ends = [None if end is None else {"SpecialToken": {"id": end[0], "type_id": kind}} for end in (first, last)]
        return [each for each in (ends[0], text, ends[1]) if each is not None]

    used = {end[0]: {"id": end[0], "ids": [end[1]], "tokens": [end[0]]} for end in (first, last) if end is not None}
    single, second = part("A", 0), part("B", 1)
    return {"type": "TemplateProcessing", "single": single, "pair": single + second, "special_tokens": used}


def _ends(first: list[Any] | None, last: list[Any] | None) -> Callable[[Content], None]:
    def edit(content: Content) -> None:
        content["post_processor"] = _around(first, last)

    return edit


def _byte_prefix(content: Content) -> None:
    content["pre_tokenizer"]["add_prefix_space"] = True


def _t5(content: Content) -> None:
    _reorder(content, ["<pad>", "</s>", "<unk>", "<s>", "<mask>"])
    content["post_processor"] = _around(None, ["</s>", 1])


def _reorder(content: Content, first: list[str]) -> None:
    """Other special tokens at the begin of a unigram vocabulary."""
    now = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    _rename(content, {old: f"?{new}" for old, new in zip(now, first, strict=True)})
    _rename(content, {f"?{new}": new for new in first})
    content["model"]["unk_id"] = first.index("<unk>" if "<unk>" in first else "[UNK]")


def _xlnet(content: Content) -> None:
    _reorder(content, ["<unk>", "<s>", "</s>", "<pad>", "<mask>"])
    count = len(content["model"]["vocab"])
    content["model"]["vocab"] += [["<sep>", 0.0], ["<cls>", 0.0]]
    content["post_processor"] = _around(None, ["<sep>", count])
    for name in ("single", "pair"):
        content["post_processor"][name].append({"SpecialToken": {"id": "<cls>", "type_id": 2}})
    quotes = [{"type": "Replace", "pattern": {"String": old}, "content": '"'} for old in ("``", "''")]
    content["normalizer"] = {"type": "Sequence", "normalizers": [*quotes, {"type": "NFKD"}, {"type": "StripAccents"}]}
    content["post_processor"]["special_tokens"]["<cls>"] = {"id": "<cls>", "ids": [count + 1], "tokens": ["<cls>"]}


def _xglm(content: Content) -> None:
    content["post_processor"] = _around(["</s>", 2], None)
    pair = content["post_processor"]["pair"]
    pair.insert(2, pair[0])
    content["normalizer"] = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    content["pre_tokenizer"] = content["pre_tokenizer"]["pretokenizers"][1]


def _albert(content: Content) -> None:
    _reorder(content, ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"])
    content["post_processor"] = _around(["[CLS]", 2], ["[SEP]", 3])
    content["post_processor"]["pair"].pop(3)
    quotes = [{"type": "Replace", "pattern": {"String": old}, "content": '"'} for old in ("``", "''")]
    steps = [*quotes, {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]
    content["normalizer"] = {"type": "Sequence", "normalizers": steps}


def _deberta_v2(content: Content) -> None:
    _reorder(content, ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"])
    content["post_processor"] = _around(["[CLS]", 1], ["[SEP]", 2])
    content["post_processor"]["pair"].pop(3)
    content["pre_tokenizer"] = content["pre_tokenizer"]["pretokenizers"][1]


def _deberta_v2_5(content: Content) -> None:
    """With the normalizer of transformers 5."""
    _deberta_v2(content)
    blanks = {"type": "Replace", "pattern": {"Regex": r"\s{2,}|[\n\r\t]"}, "content": " "}
    steps = [blanks, {"type": "NFC"}, {"type": "Strip", "strip_left": False, "strip_right": True}]
    content["normalizer"] = {"type": "Sequence", "normalizers": steps}


def _nllb(content: Content) -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    count = len(content["model"]["vocab"])
    content["added_tokens"] += [
        {"id": count + n, "content": f"{c}_Latn", **flags} for n, c in enumerate(("eng", "fra"))
    ]


def _gemma(content: Content) -> None:
    _rename(content, {"<s>": "<bos>", "</s>": "<eos>"})
    content["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    content["decoder"]["decoders"] = content["decoder"]["decoders"][:-1]
    content["post_processor"] = _around(["<bos>", 1], None)


def _stale(content: Content) -> None:
    content["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }


def _few_added(content: Content) -> None:
    """Special tokens that the vocabulary has and the list of added tokens has not."""
    content["added_tokens"] = content["added_tokens"][:2]


def _bert(config: dict[str, Any]) -> dict[str, Any]:
    return {"tokenizer_class": "BertTokenizer", **BERT, **config}


def _llama(config: dict[str, Any]) -> dict[str, Any]:
    return {"tokenizer_class": "LlamaTokenizer", **LLAMA, **config}


def _named(name: str, tokens: dict[str, str], **config: Any) -> dict[str, Any]:
    return {"tokenizer_class": name, **tokens, **config}


EXTRA = {
    "content": "<extra>",
    "single_word": False,
    "lstrip": True,
    "rstrip": False,
    "normalized": False,
    "special": True,
}
DECODER = {"added_tokens_decoder": {"420": EXTRA}}

AMINO_ACIDS = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]

#: one folder for each class, as it is saved
PLAIN: dict[str, Folder] = {
    "bert": Folder("wordpiece", "bert", _bert({"do_lower_case": True}), _lower),
    "bert cased": Folder("wordpiece", "bert", _bert({"do_lower_case": False})),
    "distilbert": Folder("wordpiece", "distilbert", _named("DistilBertTokenizer", BERT, do_lower_case=True), _lower),
    "electra": Folder("wordpiece", "electra", _named("ElectraTokenizer", BERT, do_lower_case=True), _lower),
    "mpnet": Folder(
        "wordpiece", "mpnet", _named("MPNetTokenizer", {**ROBERTA, "unk_token": "[UNK]"}, do_lower_case=True), _mpnet
    ),
    "roberta": Folder("byte-bpe", "roberta", _named("RobertaTokenizer", ROBERTA), _roberta),
    "bart": Folder("byte-bpe", "bart", _named("BartTokenizer", ROBERTA), _roberta),
    "longformer": Folder("byte-bpe", "longformer", _named("LongformerTokenizer", ROBERTA), _roberta),
    "deberta": Folder(
        "byte-bpe",
        "deberta",
        _named("DebertaTokenizer", {**BERT, "bos_token": "[CLS]", "eos_token": "[SEP]"}),
        _deberta,
    ),
    "xlm-roberta": Folder("unigram", "xlm-roberta", _named("XLMRobertaTokenizer", ROBERTA)),
    "camembert": Folder("unigram", "camembert", _named("CamembertTokenizer", ROBERTA)),
    "albert": Folder(
        "unigram",
        "albert",
        _named(
            "AlbertTokenizer",
            {**BERT, "bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "<unk>", "pad_token": "<pad>"},
            do_lower_case=True,
        ),
        _albert,
    ),
    "deberta-v2": Folder(
        "unigram",
        "deberta-v2",
        _named("DebertaV2Tokenizer", {**BERT, "bos_token": "[CLS]", "eos_token": "[SEP]"}),
        _deberta_v2,
    ),
    "t5": Folder(
        "unigram",
        "t5",
        _named("T5Tokenizer", {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}, extra_ids=0),
        _t5,
    ),
    "xlnet": Folder("unigram", "xlnet", _named("XLNetTokenizer", {**LLAMA, "pad_token": "<pad>"}), _xlnet),
    "xglm": Folder("unigram", "xglm", _named("XGLMTokenizer", {**ROBERTA, "mask_token": None}), _xglm),
    "mbart": Folder("unigram", "mbart", _named("MBartTokenizer", ROBERTA, src_lang="en_XX")),
    "llama": Folder("mark-bpe", "llama", _llama({"add_bos_token": True, "add_eos_token": False})),
    "mistral": Folder("mark-bpe", "mistral", _llama({"add_bos_token": True, "add_eos_token": False})),
    "phi3": Folder("mark-bpe", "phi3", _llama({"add_bos_token": False, "add_eos_token": False}), _ends(None, None)),
    "gemma": Folder(
        "mark-bpe",
        "gemma",
        _named(
            "GemmaTokenizer", {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}, add_bos_token=True
        ),
        _gemma,
    ),
    "llama 3": Folder(
        "split-bpe",
        "llama",
        _named("PreTrainedTokenizerFast", {"bos_token": "<s>", "eos_token": TEXT}),
        _ends(["<s>", 0], None),
    ),
    "qwen2": Folder(
        "split-bpe",
        "qwen2",
        _named("Qwen2Tokenizer", {"eos_token": TEXT, "pad_token": TEXT}, bos_token=None, add_prefix_space=False),
    ),
    "gpt2": Folder("byte-bpe", "gpt2", _named("GPT2Tokenizer", GPT2)),
    "opt": Folder(
        "byte-bpe",
        "opt",
        _named("GPT2Tokenizer", {**ROBERTA, "bos_token": "</s>"}, add_bos_token=True),
        _ends(["</s>", 2], None),
    ),
    "codegen": Folder("byte-bpe", "phi", _named("CodeGenTokenizer", GPT2)),
    "gpt-neox": Folder("byte-bpe", "gpt_neox", _named("GPTNeoXTokenizer", GPT2, add_bos_token=False), _neox),
    "whisper": Folder("byte-bpe", "whisper", _named("WhisperTokenizer", GPT2), _whisper),
    "bloom": Folder("split-bpe", "bloom", _named("BloomTokenizerFast", ROBERTA)),
    "modernbert": Folder(
        "byte-bpe", "modernbert", _named("PreTrainedTokenizerFast", ROBERTA), _ends(["<s>", 0], ["</s>", 2])
    ),
    "transformers 5": Folder(
        "wordpiece", "bert", _named("TokenizersBackend", BERT, backend="tokenizers", extra_special_tokens=["<extra>"])
    ),
}
#: folders that say two things
SWITCHED: dict[str, Folder] = {
    "bert do_lower_case": Folder("wordpiece", "bert", _bert({"do_lower_case": True})),
    "bert do_lower_case off": Folder("wordpiece", "bert", _bert({"do_lower_case": False}), _lower),
    "bert no tokenizer_config.json": Folder("wordpiece", "bert", None),
    "bert strip_accents": Folder("wordpiece", "bert", _bert({"do_lower_case": False, "strip_accents": True})),
    "bert strip_accents off": Folder("wordpiece", "bert", _bert({"strip_accents": False}), _lower),
    "bert tokenize_chinese_chars off": Folder(
        "wordpiece", "bert", _bert({"do_lower_case": False, "tokenize_chinese_chars": False})
    ),
    "electra do_lower_case": Folder("wordpiece", "electra", _named("ElectraTokenizer", BERT, do_lower_case=True)),
    "mpnet do_lower_case off": Folder(
        "wordpiece",
        "mpnet",
        _named("MPNetTokenizer", {**ROBERTA, "unk_token": "[UNK]"}, do_lower_case=False),
        lambda content: (_mpnet(content), _lower(content))[0],
    ),
    "bert truncation and padding saved": Folder("wordpiece", "bert", _bert({"do_lower_case": False}), _stale),
    "bert few added tokens": Folder("wordpiece", "bert", _bert({"do_lower_case": False}), _few_added),
    "bert added_tokens_decoder": Folder("wordpiece", "bert", _bert({"do_lower_case": False, **DECODER})),
    "bert special_tokens_map": Folder(
        "wordpiece",
        "bert",
        _bert({"do_lower_case": False}),
        files={"special_tokens_map.json": {**BERT, "additional_special_tokens": ["<extra>"]}},
    ),
    "bert added_tokens.json": Folder(
        "wordpiece", "bert", _bert({"do_lower_case": False}), files={"added_tokens.json": {"<extra>": 420}}
    ),
    "bert split_special_tokens": Folder(
        "wordpiece", "bert", _bert({"do_lower_case": False, "split_special_tokens": True})
    ),
    "roberta add_prefix_space": Folder(
        "byte-bpe", "roberta", _named("RobertaTokenizer", ROBERTA, add_prefix_space=True), _roberta
    ),
    "roberta add_prefix_space off": Folder(
        "byte-bpe",
        "roberta",
        _named("RobertaTokenizer", ROBERTA, add_prefix_space=False),
        lambda content: (_roberta(content), _byte_prefix(content))[0],
    ),
    "gpt2 add_prefix_space": Folder("byte-bpe", "gpt2", _named("GPT2Tokenizer", GPT2, add_prefix_space=True)),
    "gpt2 add_prefix_space of the class": Folder("byte-bpe", "gpt2", _named("GPT2Tokenizer", GPT2), _byte_prefix),
    "generic add_prefix_space": Folder(
        "byte-bpe", "llama", _named("PreTrainedTokenizerFast", GPT2, add_prefix_space=True)
    ),
    "generic pre-tokenizer with a prefix space": Folder(
        "byte-bpe", "llama", _named("PreTrainedTokenizerFast", GPT2), _byte_prefix
    ),
    "gpt2 add_bos_token": Folder("byte-bpe", "gpt2", _named("GPT2Tokenizer", GPT2, add_bos_token=True)),
    "llama add_eos_token": Folder("mark-bpe", "llama", _llama({"add_bos_token": True, "add_eos_token": True})),
    "llama add_eos_token alone": Folder("mark-bpe", "llama", _llama({"add_eos_token": True})),
    "llama add_bos_token off": Folder("mark-bpe", "llama", _llama({"add_bos_token": False})),
    "llama add_bos_token on": Folder("mark-bpe", "llama", _llama({"add_bos_token": True}), _ends(None, None)),
    "llama without keys": Folder("mark-bpe", "mistral", _llama({}), _ends(None, None)),
    "mistral add_eos_token": Folder("mark-bpe", "mistral", _llama({"add_bos_token": True, "add_eos_token": True})),
    "gemma add_eos_token": Folder(
        "mark-bpe",
        "gemma",
        _named(
            "GemmaTokenizer", {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}, add_eos_token=True
        ),
        _gemma,
    ),
    "qwen2 add_eos_token": Folder(
        "split-bpe", "qwen2", _named("Qwen2Tokenizer", {"eos_token": TEXT, "pad_token": TEXT}, add_eos_token=True)
    ),
    "qwen2 post-processor with an end token": Folder(
        "split-bpe",
        "qwen2",
        _named("Qwen2Tokenizer", {"eos_token": TEXT, "pad_token": TEXT}, add_bos_token=False),
        _ends(None, [TEXT, 5]),
    ),
    "gpt-neox add_eos_token": Folder(
        "byte-bpe", "gpt_neox", _named("GPTNeoXTokenizer", GPT2, add_eos_token=True), _neox
    ),
    "gpt-neox post-processor with an end token": Folder(
        "byte-bpe",
        "gpt_neox",
        _named("GPTNeoXTokenizer", GPT2),
        lambda content: (_neox(content), _ends(None, [TEXT, 5])(content))[0],
    ),
    "xlm-roberta add_prefix_space off": Folder(
        "unigram", "xlm-roberta", _named("XLMRobertaTokenizer", ROBERTA, add_prefix_space=False)
    ),
    "albert do_lower_case off": Folder(
        "unigram",
        "albert",
        _named("AlbertTokenizer", {**BERT, "unk_token": "<unk>", "pad_token": "<pad>"}, do_lower_case=False),
        _albert,
    ),
    "deberta-v2 split_by_punct": Folder(
        "unigram",
        "deberta-v2",
        _named("DebertaV2Tokenizer", {**BERT, "bos_token": "[CLS]", "eos_token": "[SEP]"}, split_by_punct=True),
        _deberta_v2_5,
    ),
    "nllb": Folder("unigram", "m2m_100", _named("NllbTokenizer", ROBERTA, src_lang="fra_Latn"), _nllb),
    "nllb legacy_behaviour": Folder(
        "unigram", "m2m_100", _named("NllbTokenizer", ROBERTA, src_lang="fra_Latn", legacy_behaviour=True), _nllb
    ),
    "mbart src_lang": Folder("unigram", "mbart", _named("MBartTokenizer", ROBERTA, src_lang="de_DE")),
}
#: folders without a tokenizer.json
OLDER: dict[str, Folder] = {
    "vocab.txt": Folder("wordpiece", "bert", _bert({"do_lower_case": True}), older=True),
    "vocab.txt cased, without tokenizer_config.json": Folder("wordpiece", "bert", None, older=True),
    "vocab.txt, electra": Folder("wordpiece", "electra", _named("ElectraTokenizer", BERT), older=True),
    "vocab.txt, distilbert": Folder(
        "wordpiece", "distilbert", _named("DistilBertTokenizer", BERT, do_lower_case=False), older=True
    ),
    "vocab.txt, mpnet": Folder(
        "wordpiece", "mpnet", _named("MPNetTokenizer", {**ROBERTA, "unk_token": "[UNK]"}), _mpnet, older=True
    ),
    "vocab.txt, esm": Folder(
        "wordpiece", "esm", _named("EsmTokenizer", {}), files={"vocab.txt": "\n".join(AMINO_ACIDS)}, older=True
    ),
    "merges.txt, gpt2": Folder("byte-bpe", "gpt2", _named("GPT2Tokenizer", GPT2), older=True),
    "merges.txt, gpt2 without tokenizer_config.json": Folder("byte-bpe", "gpt2", None, older=True),
    "merges.txt, opt": Folder(
        "byte-bpe", "opt", _named("GPT2Tokenizer", {**ROBERTA, "bos_token": "</s>"}, add_bos_token=True), older=True
    ),
    "merges.txt, roberta": Folder("byte-bpe", "roberta", _named("RobertaTokenizer", ROBERTA), older=True),
    "merges.txt, bart add_prefix_space": Folder(
        "byte-bpe", "bart", _named("BartTokenizer", ROBERTA, add_prefix_space=True), older=True
    ),
    "merges.txt, codegen": Folder("byte-bpe", "phi", _named("CodeGenTokenizer", GPT2), older=True),
    "merges.txt, qwen2": Folder(
        "split-bpe",
        "qwen2",
        _named("Qwen2Tokenizer", {"eos_token": TEXT, "pad_token": TEXT}, bos_token=None),
        older=True,
    ),
}
FOLDERS = PLAIN | SWITCHED | OLDER
