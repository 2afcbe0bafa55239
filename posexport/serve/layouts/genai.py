"""``--layout genai``: a bundle with ``genai_config.json``, which onnxruntime-genai (0.18) runs.

The graph is a bundle's. onnxruntime-genai computes the positions and feeds a mask of ones: it ignores padding.
"""

import json
from pathlib import Path
from typing import Any

from posexport.errors import PosexportError
from posexport.export.layout import Layout
from posexport.models.decoder import DecoderModel
from posexport.serve.layouts.shared import check_states, read_json
from posexport.sources.source import Source
from posexport.spec import CAPACITY, MODEL

FILE = "genai_config.json"
#: text decoders of onnxruntime-genai 0.18 with the input names of posexport's graphs; its ``gpt2`` has another KV cache
_TYPES = {"llama", "mistral", "phi", "phi3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3"}
#: the type of any other decoder
_DEFAULT = "llama"
#: onnxruntime-genai runs the whole text of a ``phi3`` again after this many tokens, whatever its configuration says
_PHI3_ORIGINAL = 4096
#: the context length if neither the source nor config.json has one
_LENGTH = 2048


def check(source: Source) -> None:
    """Raise PosexportError for a source that is not a decoder with logits."""
    check_states(source, "genai", "onnxruntime-genai")
    module = source.module
    if not isinstance(module, DecoderModel) or module.head is None:
        raise PosexportError(
            f"--layout genai is for decoders that generate text; {source.name} is for {source.task}: leave it out"
        )


def write(directory: Path, source: Source) -> None:
    """Write ``genai_config.json``, from the definition and the checkpoint's configuration."""
    (directory / FILE).write_text(json.dumps(config(source), indent=4) + "\n", encoding="utf-8")


def config(source: Source) -> dict[str, Any]:
    """The content of ``genai_config.json``."""
    check(source)
    module = source.module
    assert isinstance(module, DecoderModel)
    # special tokens: generation_config.json before config.json
    stored, generation = (read_json(source.files.get(name)) for name in ("config.json", "generation_config.json"))
    ids = {**stored, **{key: value for key, value in generation.items() if value is not None}}
    settings = module.decoder.config
    longest = source.limits.max_length or _longest(stored) or _LENGTH
    ends = [token for token in _listed(ids.get("eos_token_id")) if token < settings.vocab]
    padding = ids.get("pad_token_id")
    ids = {"bos_token_id": ids.get("bos_token_id"), "pad_token_id": padding if padding is not None else [*ends, 0][0]}
    # sizes are the definition's, names of tensors the graph's
    return {
        "model": {
            "type": model_type(stored),
            "vocab_size": settings.vocab,
            "context_length": longest,
            "eos_token_id": ends,
            **{key: token for key, token in ids.items() if token is not None and token < settings.vocab},
            "decoder": {
                "session_options": {"log_id": "posexport", "provider_options": []},
                "filename": MODEL,
                "hidden_size": settings.hidden,
                "head_size": settings.head_size,
                "num_attention_heads": settings.heads,
                "num_key_value_heads": settings.kv_heads or settings.heads,
                "num_hidden_layers": settings.layers,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {
            "do_sample": False,
            "max_length": longest,
            # one buffer for past and present needs a static KV cache
            "past_present_share_buffer": any(CAPACITY in spec.axes for spec in source.inputs),
        },
    }


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


def _checked(source: Source) -> Source:
    check(source)
    return source


GENAI = Layout(arrange=_checked, write=write)
