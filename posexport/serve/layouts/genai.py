"""``--layout genai``: a bundle with ``genai_config.json``, which onnxruntime-genai (0.18) runs.

The graph is a bundle's. onnxruntime-genai computes the positions and feeds a mask of ones: it ignores padding.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posexport.base.spec import BATCH, CAPACITY, LOGITS, MODEL, PAST
from posexport.conversion.export.layout import Layout
from posexport.errors import PosexportError
from posexport.models.decoder import DecoderModel
from posexport.models.layer_outputs import WithLayerOutputs
from posexport.models.with_prefix import WithPrefix
from posexport.run.cache import DecoderInterface, decoder_interface
from posexport.run.providers import numeric_options
from posexport.serve.layouts import genai_states
from posexport.serve.layouts.shared import read_json
from posexport.sources.source import Source

FILE = "genai_config.json"
TOKENS, KEYS, VALUES = "input_ids", "past_key_values.%d.key", "past_key_values.%d.value"
#: text decoders of onnxruntime-genai 0.18 with the input names of posexport's graphs; its ``gpt2`` has another KV cache
_TYPES = {"llama", "mistral", "phi", "phi3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3"}
#: the type of any other decoder
_DEFAULT = "llama"
#: onnxruntime-genai runs the whole text of a ``phi3`` again after this many tokens, whatever its configuration says
_PHI3_ORIGINAL = 4096
#: the context length if neither the source nor config.json has one
_LENGTH = 2048


def check(source: Source) -> None:
    """Raise PosexportError for a source that is not a decoder with logits, or with states that are not passed on."""
    decoder = None if source.parts else decoder_interface(source.inputs, source.outputs)
    if decoder is None or decoder.fixed or decoder.tokens.name != TOKENS or not _named_by_layers(decoder):
        raise PosexportError(
            f"--layout genai is for decoders that generate text; {source.name} is for {source.task}: leave it out"
        )
    genai_states.check(source)


def _named_by_layers(decoder: DecoderInterface) -> bool:
    cache = [spec.name for spec in decoder.past if spec.role == "cache"]
    return cache == [name % layer for layer in range(len(cache) // 2) for name in (KEYS, VALUES)]


def write(directory: Path, source: Source) -> None:
    """Write ``genai_config.json``, from the definition and the checkpoint's configuration."""
    # genai passes keys that it does not know to ONNX Runtime: without these, int8 saturates on some processors, and
    # denormal probabilities are slow
    options = numeric_options(directory / MODEL)
    (directory / FILE).write_text(json.dumps(config(source, options), indent=4) + "\n", encoding="utf-8", newline="\n")


def config(source: Source, session_options: Mapping[str, str]) -> dict[str, Any]:
    """The content of ``genai_config.json``; ``session_options``: by ONNX Runtime's names."""
    decoder = decoder_interface(source.inputs, source.outputs)
    assert decoder is not None
    # special tokens: generation_config.json before config.json
    stored, generation = (read_json(source.files.get(name)) for name in ("config.json", "generation_config.json"))
    ids = {**stored, **{key: value for key, value in generation.items() if value is not None}}
    longest = source.limits.max_length or (_longest(stored) or _LENGTH) - _virtual(source)
    ends = [token for token in _listed(ids.get("eos_token_id")) if token < decoder.vocab]
    padding = ids.get("pad_token_id")
    ids = {"bos_token_id": ids.get("bos_token_id"), "pad_token_id": padding if padding is not None else [*ends, 0][0]}
    # names of tensors are the graph's
    inputs = {
        "input_ids": TOKENS,
        "attention_mask": decoder.mask.name,
        "past_key_names": KEYS,
        "past_value_names": VALUES,
    }
    outputs = {
        "logits": LOGITS,
        "present_key_names": "present.%d.key",
        "present_value_names": "present.%d.value",
    }
    states = genai_states.settings(source)
    return {
        "model": {
            "type": genai_states.model_type(source, model_type(stored)),
            "vocab_size": decoder.vocab,
            "context_length": longest,
            "eos_token_id": ends,
            **{key: token for key, token in ids.items() if token is not None and token < decoder.vocab},
            "decoder": {
                "session_options": {"log_id": "posexport", **session_options, "provider_options": []},
                "filename": MODEL,
                **_sizes(source, decoder, stored),
                **states,
                "inputs": {**inputs, **states.get("inputs", {})},
                "outputs": {**outputs, **states.get("outputs", {})},
            },
        },
        "search": {
            "do_sample": False,
            "max_length": longest,
            # one buffer for past and present needs a static KV cache
            "past_present_share_buffer": any(CAPACITY in spec.axes for spec in source.inputs),
        },
    }


def _sizes(source: Source, decoder: DecoderInterface, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of the definition where posexport has one, else of the KV cache and config.json."""
    names = ("hidden_size", "head_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers")
    module = WithLayerOutputs.without(source.module)
    if isinstance(module, DecoderModel):
        shape = module.decoder.config
        sizes = (shape.hidden, shape.head_size, shape.heads, shape.kv_heads or shape.heads, shape.layers)
        return dict(zip(names, sizes, strict=True))
    keys = [spec.axes for spec in decoder.past if spec.role == "cache"][::2]
    _, heads, _, size = keys[0] if keys else (BATCH, 1, PAST, 1)
    hidden, queries = stored.get("hidden_size", size), stored.get("num_attention_heads", heads)
    return dict(zip(names, (hidden, size, queries, heads, len(keys)), strict=True))


def model_type(config: dict[str, Any]) -> str:
    """The checkpoint's type if onnxruntime-genai has the same architecture by that name, else ``llama``."""
    name = config.get("model_type")
    if name not in _TYPES:
        return _DEFAULT
    return _DEFAULT if name == "phi3" and _original(config) != _PHI3_ORIGINAL else str(name)


def _listed(tokens: Any) -> list[int]:
    return tokens if isinstance(tokens, list) else [] if tokens is None else [tokens]


def _original(config: dict[str, Any]) -> Any:
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return scaling.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))


def _longest(config: dict[str, Any]) -> int | None:
    lengths = (config.get(key) for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"))
    return next((length for length in lengths if isinstance(length, int)), None)


def _virtual(source: Source) -> int:
    """How many virtual tokens take places before every row."""
    return sum(module.virtual for module in source.module.modules() if isinstance(module, WithPrefix))


def _checked(source: Source) -> Source:
    check(source)
    return genai_states.arranged(source)


GENAI = Layout(arrange=_checked, write=write, adapter_files=True)
