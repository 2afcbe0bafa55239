"""Types that posexport does not define: those that ``ci/through/run`` converts, and those refused by what they are.

Any other type of transformers is tried.
"""

#: model_type: the tasks that were proven with the version `posexport.sources.transformers.library.TESTED`
PROVEN: dict[str, tuple[str, ...]] = {"mixtral": ("text-generation",), "clip": ("zero-shot-image-classification",)}

_RECURRENT = "its layers keep a state of their own between tokens, which is no KV cache"
_SEQ2SEQ = "it is an encoder-decoder, which posexport converts in several graphs, of types that it defines alone"
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
}
