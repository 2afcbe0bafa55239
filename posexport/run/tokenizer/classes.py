"""transformers' tokenizer classes: the defaults of each for settings that no file has. One entry per class."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TokenizerClass:
    """A class's defaults.

    Attributes:
        tokens: special tokens by key.
        more: further special tokens, unless a file lists some.
        always: further special tokens, in addition to those that a file lists.
        language: default of ``src_lang`` (mBART, NLLB); None: the class has no languages.
        normalizer: keys of tokenizer_config.json that change a ``BertNormalizer``.
        prefix_space: default of ``add_prefix_space`` for a byte-level pre-tokenizer; None: as in tokenizer.json.
        nested_prefix_space: whether ``add_prefix_space`` also reaches a pre-tokenizer inside a sequence.
        template: whether ``add_bos_token`` and ``add_eos_token`` change the post-processor.
        template_default: default of both; None: keep the post-processor of tokenizer.json.
        padding_side: default of ``padding_side``.
        mask_strips: whether the default mask token has ``lstrip``: it includes the space before it.
    """

    tokens: dict[str, str] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    language: str | None = None
    normalizer: tuple[str, ...] = ()
    prefix_space: bool | None = None
    nested_prefix_space: bool = False
    template: bool = False
    template_default: bool | None = None
    padding_side: str = "right"
    mask_strips: bool = False


_LOWER = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
_BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
_ROBERTA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>"}
_ROBERTA |= {"cls_token": "<s>", "mask_token": "<mask>"}
_BEGIN_END = {"bos_token": "[CLS]", "eos_token": "[SEP]"}
_ENDOFTEXT = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
_LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_T5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_GEMMA = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}

_CODES = "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP "
#: language codes of mBART, and those that mBART-50 adds
MBART = tuple((_CODES + "nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN").split())
_CODES = "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE "
MBART_50 = tuple((_CODES + "ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI").split())

GENERIC = TokenizerClass()
_BERT_NAMES = ("Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "SqueezeBert", "LayoutLM", "Lxmert")
_DPR_NAMES = ("DPRContextEncoder", "DPRQuestionEncoder", "DPRReader")
_ROBERTA_CLASS = TokenizerClass(_ROBERTA, prefix_space=False, mask_strips=True)
_GPT2_CLASS = TokenizerClass(_ENDOFTEXT, prefix_space=False)

CLASSES: dict[str, TokenizerClass] = {
    **dict.fromkeys(
        (f"{name}Tokenizer" for name in (*_BERT_NAMES, *_DPR_NAMES)),
        TokenizerClass(_BERT, normalizer=_LOWER),
    ),
    "RoFormerTokenizer": TokenizerClass(_BERT, normalizer=_LOWER[:2]),
    "MPNetTokenizer": TokenizerClass({**_ROBERTA, "unk_token": "[UNK]"}, normalizer=_LOWER[:2], mask_strips=True),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer"), _ROBERTA_CLASS),
    "XLMRobertaTokenizer": TokenizerClass(_ROBERTA, mask_strips=True),
    "CamembertTokenizer": TokenizerClass(
        _ROBERTA, more=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"), mask_strips=True
    ),
    "EsmTokenizer": TokenizerClass(
        {"eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>", "cls_token": "<cls>", "mask_token": "<mask>"}
    ),
    "NllbTokenizer": TokenizerClass(_ROBERTA, language="eng_Latn", mask_strips=True),
    "AlbertTokenizer": TokenizerClass(
        {**_BERT, **_BEGIN_END, "unk_token": "<unk>", "pad_token": "<pad>"}, mask_strips=True
    ),
    "DebertaTokenizer": TokenizerClass({**_BERT, **_BEGIN_END}, prefix_space=False, mask_strips=True),
    "DebertaV2Tokenizer": TokenizerClass({**_BERT, **_BEGIN_END}),
    "T5Tokenizer": TokenizerClass(_T5),
    "MBartTokenizer": TokenizerClass(_ROBERTA, always=MBART, language="en_XX", mask_strips=True),
    "MBart50Tokenizer": TokenizerClass(
        {**_ROBERTA, "bos_token": ""}, always=(*MBART, *MBART_50), language="en_XX", mask_strips=True
    ),
    "WhisperTokenizer": TokenizerClass(_ENDOFTEXT, prefix_space=False),
    "XLNetTokenizer": TokenizerClass(
        {**_LLAMA, "sep_token": "<sep>", "pad_token": "<pad>", "cls_token": "<cls>", "mask_token": "<mask>"},
        more=("<eop>", "<eod>"),
        padding_side="left",
        mask_strips=True,
    ),
    **dict.fromkeys(
        ("LlamaTokenizer", "CodeLlamaTokenizer"), TokenizerClass(_LLAMA, template=True, padding_side="left")
    ),
    "GemmaTokenizer": TokenizerClass(_GEMMA, template=True, padding_side="left"),
    "CohereTokenizer": TokenizerClass(nested_prefix_space=True, template=True, padding_side="left"),
    "Qwen2Tokenizer": TokenizerClass(
        dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"), nested_prefix_space=True
    ),
    "GPTNeoXTokenizer": TokenizerClass(_ENDOFTEXT, prefix_space=False, template=True, template_default=False),
    **dict.fromkeys(("GPT2Tokenizer", "CodeGenTokenizer"), _GPT2_CLASS),
    "BloomTokenizer": TokenizerClass({**_LLAMA, "pad_token": "<pad>"}, nested_prefix_space=True),
    "XGLMTokenizer": TokenizerClass(
        {**_ROBERTA, "mask_token": ""}, always=tuple(f"<madeupword{number}>" for number in range(7))
    ),
}

#: the class that transformers selects by model type if no file names one
BY_MODEL_TYPE: dict[str, str] = {
    **dict.fromkeys(("bert", "ernie", "megatron-bert", "nezha", "nomic_bert"), "BertTokenizer"),
    "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
    "roformer": "RoFormerTokenizer",
    "mpnet": "MPNetTokenizer",
    "esm": "EsmTokenizer",
    **dict.fromkeys(("roberta", "roberta-prelayernorm"), "RobertaTokenizer"),
    "bart": "BartTokenizer",
    "longformer": "LongformerTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "albert": "AlbertTokenizer",
    "deberta": "DebertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    **dict.fromkeys(("t5", "mt5", "umt5"), "T5Tokenizer"),
    "mbart": "MBartTokenizer",
    "whisper": "WhisperTokenizer",
    "xlnet": "XLNetTokenizer",
    **dict.fromkeys(("llama", "mistral", "phi3"), "LlamaTokenizer"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), "GemmaTokenizer"),
    **dict.fromkeys(("qwen2", "qwen3"), "Qwen2Tokenizer"),
    **dict.fromkeys(("gpt_neox", "mpt", "stablelm"), "GPTNeoXTokenizer"),
    **dict.fromkeys(
        ("gpt2", "gpt_bigcode", "gpt_neo", "gptj", "opt", "granite", "olmo2", "starcoder2"), "GPT2Tokenizer"
    ),
    "phi": "CodeGenTokenizer",
    "bloom": "BloomTokenizer",
    "xglm": "XGLMTokenizer",
}
