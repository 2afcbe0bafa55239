"""The family that a type which posexport does not define is most like, by what it computes.

Not by spelling, which takes HuBERT for BERT and LLaVA for LLaMA. A type is listed where its layers equal the
family's or differ in one part: a wrong suggestion costs more time than no suggestion.
"""

from posexport.checkpoints.families.registry import FAMILIES

#: by family, the types that are like it
_LIKE = {
    "roberta": "data2vec-text ibert luke markuplm",
    "xlm-roberta": "xmod xlm-roberta-xl",
    "modernbert": "modernbert-decoder",
    # a mixture of experts in place of the feed-forward; a sliding window
    "mistral": "mixtral ministral",
    "qwen2": "qwen2_moe",
    "qwen3": "qwen3_moe",
    "granite": "granitemoe",
    "olmo2": "olmo3",
    # packed projections; the bias of one projection; normalisation after each sublayer
    "llama": "internlm2",
    "gptj": "codegen",
    "gpt_neox": "gpt_neox_japanese",
    "gpt2": "openai-gpt",
    # names before transformers had the model
    "falcon": "RefinedWeb RefinedWebModel",
    "stablelm": "stablelm_epoch",
    "opt": "biogpt",
    "gemma3_text": "gemma3",
    # where layers are normalised; tiled attention; a mixture of experts
    "bart": "plbart blenderbot-small",
    "mbart": "blenderbot",
    "t5": "longt5 switch_transformers",
    # the same convolutions and layers, positions by a convolution alone
    "wavlm": "wav2vec2 hubert unispeech unispeech-sat data2vec-audio",
    # one token more, a scale of each sublayer, another training
    "vit": "deit dinov2 vit_mae vit_msn ijepa",
    "beit": "data2vec-vision",
    "swin": "donut-swin maskformer-swin",
}
CLOSEST = {model_type: family for family, types in _LIKE.items() for model_type in types.split()}


def closest(model_type: str) -> str | None:
    """The family that ``model_type`` is most like, or that it is by another spelling; None where no family is close."""
    return {_letters(name): name for name in FAMILIES}.get(_letters(model_type)) or CLOSEST.get(model_type)


def _letters(model_type: str) -> str:
    return model_type.lower().replace("-", "").replace("_", "")
