"""``--layout genai``: ``genai_config.json`` beside the model, so that onnxruntime-genai (0.18) runs the bundle too.

The model is the same. onnxruntime-genai counts its own positions and gives a mask of ones: it ignores padding.
"""

import json
from pathlib import Path
from typing import Any

from posexport.errors import PosexportError
from posexport.export.layout import Layout
from posexport.models.decoder import DecoderModel
from posexport.serve.layouts.shared import read_json
from posexport.sources.source import Source
from posexport.spec import CAPACITY, MODEL

FILE = "genai_config.json"
#: the decoders of text alone that onnxruntime-genai 0.18 knows by name and runs by names of inputs as ours are; its
#: ``gpt2`` means another layout of the cache
_TYPES = {"llama", "mistral", "phi", "phi3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3"}
#: what a plain decoder is called
_PLAIN = "llama"
#: onnxruntime-genai reads a ``phi3`` again from its start at this many tokens and one, whatever its configuration says
_PHI3_ORIGINAL = 4096
#: where nothing else says how long an input may be
_LENGTH = 2048


def check(source: Source) -> None:
    """PosexportError where onnxruntime-genai cannot run such a model."""
    module = source.module
    if not isinstance(module, DecoderModel) or module.head is None:
        raise PosexportError(
            f"--layout genai is for decoders that generate text; {source.name} is for {source.task}: leave it out"
        )


def write(directory: Path, source: Source) -> None:
    """``genai_config.json`` in ``directory``, from the definition and the checkpoint's own configuration."""
    (directory / FILE).write_text(json.dumps(config(source), indent=4) + "\n", encoding="utf-8")


def config(source: Source) -> dict[str, Any]:
    """The content of ``genai_config.json``."""
    check(source)
    module = source.module
    assert isinstance(module, DecoderModel)
    given, generation = (read_json(source.files.get(name)) for name in ("config.json", "generation_config.json"))
    ids = {**given, **{key: value for key, value in generation.items() if value is not None}}
    settings = module.decoder.config
    longest = source.limits.max_length or _longest(given) or _LENGTH
    ends = [token for token in _listed(ids.get("eos_token_id")) if token < settings.vocab]
    padding = ids.get("pad_token_id")
    ids = {"bos_token_id": ids.get("bos_token_id"), "pad_token_id": padding if padding is not None else [*ends, 0][0]}
    return {
        "model": {
            "type": model_type(given),
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
            # one buffer as what is taken and given works where the cache has its size from the start
            "past_present_share_buffer": any(CAPACITY in spec.axes for spec in source.inputs),
        },
    }


def model_type(given: dict[str, Any]) -> str:
    """The checkpoint's type where onnxruntime-genai means the same by it, else a plain decoder's."""
    name = given.get("model_type")
    if name not in _TYPES:
        return _PLAIN
    return _PLAIN if name == "phi3" and _original(given) != _PHI3_ORIGINAL else str(name)


def _listed(tokens: Any) -> list[int]:
    return tokens if isinstance(tokens, list) else [] if tokens is None else [tokens]


def _original(given: dict[str, Any]) -> Any:
    scaling = given.get("rope_parameters") or given.get("rope_scaling") or {}
    return scaling.get("original_max_position_embeddings", given.get("original_max_position_embeddings"))


def _longest(given: dict[str, Any]) -> int | None:
    found = (given.get(key) for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"))
    return next((length for length in found if isinstance(length, int)), None)


def _checked(source: Source) -> Source:
    check(source)
    return source


GENAI = Layout(arrange=_checked, write=write)
