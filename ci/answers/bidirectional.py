"""Decoders with ``is_causal: false`` (LLM2Vec, gte-Qwen2): the states that transformers' ``AutoModel`` gives."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import posexport
from ci.answers.case import Case
from posexport import PosexportError

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
}
GROUPED: dict[str, Any] = SIZES | {"num_key_value_heads": 2, "intermediate_size": 56, "head_dim": 8, "pad_token_id": 0}
#: configurations by model type, and what is special about them
MODELS: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": GROUPED | {"sliding_window": 7},
    "qwen2": GROUPED | {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 6},
    "qwen3": GROUPED,
    "granite": GROUPED,
    "olmo2": GROUPED,
    "phi3": GROUPED | {"sliding_window": 9, "bos_token_id": 1, "eos_token_id": 2},
    "smollm3": GROUPED | {"bos_token_id": 1, "eos_token_id": 2},
    "stablelm": GROUPED | {"bos_token_id": 1, "eos_token_id": 2},
    "starcoder2": GROUPED | {"sliding_window": 5, "bos_token_id": 1, "eos_token_id": 2},
    "gemma": GROUPED,
    "gemma2": GROUPED | {"sliding_window": 6},
    "gemma3_text": GROUPED | {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    "phi": SIZES | {"intermediate_size": 56},
    "gpt_neox": SIZES | {"intermediate_size": 56},
    "gpt2": {"vocab_size": 97, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 128},
    "gptj": {"vocab_size": 97, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 128, "rotary_dim": 4},
    "opt": SIZES | {"ffn_dim": 56, "word_embed_proj_dim": 48},
    "xglm": {"vocab_size": 97, "d_model": 48, "num_layers": 2, "attention_heads": 6, "ffn_dim": 56},
    "falcon": SIZES | {"multi_query": True, "new_decoder_architecture": False, "alibi": False},
    "bloom": {"vocab_size": 97, "hidden_size": 48, "n_layer": 2, "n_head": 6},
    "mpt": {"vocab_size": 97, "d_model": 48, "n_layers": 2, "n_heads": 6},
    "gpt_neo": SIZES
    | {"num_layers": 2, "num_heads": 6, "attention_types": [[["global", "local"], 1]], "window_size": 5},
}
IDS = np.random.default_rng(3).integers(3, 97, (3, 23))
LENGTHS = (23, 11, 17)
MASK = np.stack([np.arange(23) < length for length in LENGTHS]).astype(np.int64)


def saved(model_type: str, folder: Path, **keys: Any) -> Any:
    """A checkpoint with drawn weights at which positions matter, and its model."""
    import torch
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(model_type, **MODELS[model_type], **keys)
    torch.manual_seed(5)
    model = AutoModel.from_config(config, attn_implementation="eager").eval().float()
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape)
        norm = parameter.dim() == 1 and name.endswith("weight")
        parameter.data.copy_(0.3 * noise + ("gemma" not in model_type) if norm else 0.25 * noise)
    model.save_pretrained(folder)
    return model


def states(model: Any) -> np.ndarray:
    """Of the tokens that are not padding, [tokens, channels]."""
    import torch

    with torch.inference_mode():
        out = model(input_ids=torch.from_numpy(IDS), attention_mask=torch.from_numpy(MASK)).last_hidden_state
    return out.numpy()[MASK == 1]


def cases(work: Path) -> Iterator[Case]:
    """One row for each family of decoders: equal, or refused in a sentence."""
    import transformers

    library = f"transformers {transformers.__version__}"
    for model_type in MODELS:
        folder, bundle = work / model_type, work / f"{model_type}.bundle"
        theirs = states(saved(model_type, folder, is_causal=False))
        causal = states(saved(model_type, work / f"{model_type}.causal"))
        changed = float(np.abs(theirs - causal).max())
        try:
            done = posexport.convert(str(folder), bundle, task="features", target="cpu", verify=False)
        except PosexportError as err:
            said = str(err)
            yield Case(
                part="bidirectional", asked=model_type, library=library, ours=said, theirs="", equal=False, remark=said
            )
            continue
        run = posexport.load(bundle).run({"input_ids": IDS, "attention_mask": MASK})
        error = float(np.abs(run["last_hidden_state"][MASK == 1] - theirs).max())
        remark = next((each for each in done.remarks if "is_causal" in each), "")
        ignored = changed == 0.0
        yield Case(
            part="bidirectional",
            asked=f"{model_type}, is_causal: false",
            library=library,
            ours=f"off by {error:.1e}",
            theirs=f"a causal mask changes {changed:.1e}",
            equal=error < 1e-4 * max(1, float(np.abs(theirs).max())) and not ignored,
            remark=remark if ignored else "",
        )
