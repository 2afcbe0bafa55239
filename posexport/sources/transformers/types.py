"""Types that posexport does not define: those that ``ci/through/run`` converts, and those refused by what they are.

Any other type of transformers is tried.
"""

#: model_type: the tasks that its checkpoint of ci/through was proven for, with the version TESTED of
#: `posexport.sources.transformers.library`
PROVEN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "big_bird",
            "data2vec-text",
            "eurobert",
            "ibert",
            "xlm-roberta-xl",
            "xmod",
        ),
        ("fill-mask",),
    ),
    **dict.fromkeys(("convbert",), ("sequence-classification",)),
    **dict.fromkeys(("mobilebert",), ("token-classification",)),
    **dict.fromkeys(("rembert",), ("question-answering",)),
    **dict.fromkeys(
        (
            "clip_text_model",
            "clip_vision_model",
            "dinov2",
            "dinov2_with_registers",
            "dinov3_vit",
            "ijepa",
            "nomic_bert",
            "squeezebert",
            "vit_msn",
        ),
        ("features",),
    ),
    **dict.fromkeys(
        (
            "arcee",
            "biogpt",
            "codegen",
            "cohere",
            "cohere2",
            "deepseek_v3",
            "ernie4_5",
            "exaone4",
            "glm4",
            "gpt_oss",
            "helium",
            "mixtral",
            "nemotron",
            "olmo3",
            "qwen2_moe",
            "qwen3_moe",
        ),
        ("text-generation",),
    ),
    **dict.fromkeys(("deit",), ("image-classification",)),
    **dict.fromkeys(
        (
            "clip",
            "siglip",
        ),
        ("zero-shot-image-classification",),
    ),
    **dict.fromkeys(
        (
            "unispeech",
            "wav2vec2",
        ),
        ("ctc",),
    ),
    **dict.fromkeys(
        (
            "audio-spectrogram-transformer",
            "hubert",
        ),
        ("audio-classification",),
    ),
}

_RECURRENT = "its layers keep a state of their own between tokens, which is no KV cache"
_SEQ2SEQ = "it is an encoder-decoder, which posexport converts in several graphs, of types that it defines alone"
_PLACES = "it also reads where words stand on a page (bbox), which posexport does not give it"
_VISION_LANGUAGE = "it reads images and text in several graphs, which posexport does not make"
#: model_type: why it is not converted
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("bamba", "falcon_h1", "falcon_mamba", "jamba", "lfm2", "mamba", "mamba2", "qwen3_next", "rwkv", "zamba"),
        _RECURRENT,
    ),
    **dict.fromkeys(
        ("bigbird_pegasus", "blenderbot", "blenderbot-small", "led", "longt5", "m2m_100", "pegasus", "prophetnet"),
        _SEQ2SEQ,
    ),
    **dict.fromkeys(
        ("blip", "gemma3", "idefics3", "llava", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "smolvlm"), _VISION_LANGUAGE
    ),
    **dict.fromkeys(("layoutlm", "layoutlmv2", "layoutlmv3"), _PLACES),
    "nystromformer": "it takes texts of one length alone",
    "openai-gpt": "its attention is code of its own, which no KV cache of posexport's goes through",
}
