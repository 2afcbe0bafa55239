"""Which family a model type that is not read is most like, by what it computes: layers, modality and positions.

Not by spelling, which takes HuBERT for BERT and LLaVA for LLaMA. A type is here where its layers are those of the
family, or differ from them in one part; of all others nothing is said, for a wrong suggestion costs more time than
none.
"""

from posexport.checkpoints.families.registry import FAMILIES

#: the same layers under another name, or but for the part that the comment names
_RELATIVES = {
    # RoBERTa: other data, adapters, quantized, entities, nodes of a web page; normalisation before each sublayer
    "roberta": ("data2vec-text", "ibert", "luke", "markuplm"),
    "xlm-roberta": ("xmod", "xlm-roberta-xl"),
    # rotations, gated feed-forward, no biases
    "modernbert": ("modernbert-decoder",),
    # a mixture of experts in place of the feed-forward; a sliding window
    "mistral": ("mixtral", "ministral"),
    "qwen2": ("qwen2_moe",),
    "qwen3": ("qwen3_moe",),
    "granite": ("granitemoe",),
    "olmo2": ("olmo3",),
    # packed projections
    "llama": ("internlm2",),
    "gptj": ("codegen",),
    # the bias of one projection
    "gpt_neox": ("gpt_neox_japanese",),
    # normalisation after each sublayer
    "gpt2": ("openai-gpt",),
    # names before transformers had the model
    "falcon": ("RefinedWeb", "RefinedWebModel"),
    "stablelm": ("stablelm_epoch",),
    "opt": ("biogpt",),
    # the text model inside
    "gemma3_text": ("gemma3",),
    # where layers are normalised; attention by blocks; a mixture of experts
    "bart": ("plbart", "blenderbot-small"),
    "mbart": ("blenderbot",),
    "t5": ("longt5", "switch_transformers"),
    # encoders of sound: the same convolutions and layers, positions by a convolution alone
    "wavlm": ("wav2vec2", "hubert", "unispeech", "unispeech-sat", "data2vec-audio"),
    # encoders of images: one token more, a scale of each sublayer, another training
    "vit": ("deit", "dinov2", "vit_mae", "vit_msn", "ijepa"),
    "beit": ("data2vec-vision",),
    "swin": ("donut-swin", "maskformer-swin"),
}
_BY_TYPE = {other: family for family, others in _RELATIVES.items() for other in others}


def relative(model_type: str) -> str | None:
    """The family whose definition is close to what ``model_type`` computes, or None.

    Example:
        >>> relative("hubert")
        'wavlm'
        >>> relative("llava")
    """
    plain = {_plain(name): name for name in FAMILIES}
    return plain.get(_plain(model_type)) or _BY_TYPE.get(model_type)


def _plain(model_type: str) -> str:
    return model_type.lower().replace("-", "").replace("_", "")
