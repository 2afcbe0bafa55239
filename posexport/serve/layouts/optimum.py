"""``--layout optimum``: what the ORTModel classes of Hugging Face's optimum-onnx (0.1.0) load.

They feed every input that a session lists, and expect these names of files and tensors
(optimum/onnxruntime/modeling_decoder.py and modeling_seq2seq.py). An encoder-decoder has a decoder for the first call,
which reads the encoder's states, and one for all later calls; the three files share their weights in
``model.onnx_data``.
"""

import msgspec

from posexport.conversion.export.layout import Layout
from posexport.conversion.export.save import OwnFile, SharedFile, Store
from posexport.errors import PosexportError
from posexport.models.decoder import DecoderModel
from posexport.models.layer_outputs import WithLayerOutputs
from posexport.serve.layouts.shared import CONFIG, check_client, fed, keeps_states, read_json, wiring
from posexport.sources.source import Source

ENCODER, FIRST, LATER = "encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"
#: optimum's name for the weights of model.onnx
DATA = "model.onnx_data"
_SUFFIX = "_data"
#: the types for which ORTModelForCausalLM makes an empty cache with ``num_key_value_heads`` (else: one for every head),
#: and with ``head_dim`` (else: hidden size over heads)
_KV_HEADS = {"arcee", "cohere", "gemma", "gemma3_text", "glm", "granite", "gpt_oss", "helium", "mistral", "llama"}
_KV_HEADS |= {"nemotron", "qwen2", "qwen3", "qwen3_moe", "smollm3", "stablelm", "falcon"}
_HEAD_SIZES = {"gemma", "gemma3_text", "gpt_oss", "nemotron"}


def arrange(source: Source) -> Source:
    """``source`` cut into the graphs of optimum; PosexportError for a model that optimum does not have."""
    check_client(source, "optimum", "optimum")
    if keeps_states(source):
        raise PosexportError(
            f"{source.name} keeps states between tokens, and ORTModelForCausalLM of optimum-onnx 0.1.0 feeds keys and "
            "values alone: leave --layout optimum out"
        )
    if source.parts:
        cut = wiring(source)
        return msgspec.structs.replace(source, parts=[cut.encoder_alone(ENCODER), cut.first(FIRST), cut.later(LATER)])
    return msgspec.structs.replace(source, inputs=fed(source.inputs), remarks=[*source.remarks, *_misfits(source)])


def _misfits(source: Source) -> list[str]:
    """A remark if optimum-onnx 0.1.0 makes an empty cache of other sizes than the model's, or none."""
    module = WithLayerOutputs.without(source.module)
    if not isinstance(module, DecoderModel):
        return []
    if module.head is None:
        return [
            "ORTModelForFeatureExtraction of optimum-onnx 0.1.0 feeds no KV cache, which the graph of a decoder for "
            "features has; posexport.load can run it, and of a folder of sentence-transformers --task "
            "sentence-embedding gives a graph without a cache"
        ]
    kind, settings = read_json(source.files.get(CONFIG)).get("model_type"), module.decoder.config
    heads = settings.kv_heads or settings.heads
    assumed = heads if kind in _KV_HEADS else settings.heads
    size = settings.head_size if kind in _HEAD_SIZES else settings.hidden // settings.heads
    if (assumed, size) == (heads, settings.head_size):
        return []
    return [
        f"ORTModelForCausalLM of optimum-onnx 0.1.0 begins a {kind} with a cache of {assumed} heads of size {size}, "
        f"the model has {heads} of {settings.head_size}: it cannot generate with it; posexport.load can"
    ]


def store(source: Source) -> Store:
    """One shared file of weights for several graphs."""
    return SharedFile(DATA) if source.parts else OwnFile(_SUFFIX)


OPTIMUM = Layout(arrange=arrange, store=store)
