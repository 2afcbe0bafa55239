"""A tiny Whisper of one second, with a tokenizer of its own: written by NumPy, read by transformers and posexport."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: one second: 100 frames, 50 states of the encoder, timestamps from 0.00 to 1.00
FRAMES, STATES = 100, 50
MELS, WIDTH, HEADS, LAYERS, INNER, POSITIONS = 8, 24, 3, 2, 20, 320
LETTERS = [*"abcdefghijklmnopqrstuvwxyz.,", "Ġ", "Ġthe", "ing"]
NAMED = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|de|>",
    "<|yue|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
]
STAMPS = [f"<|{number * 0.02:.2f}|>" for number in range(STATES + 1)]
TOKENS = {token: number for number, token in enumerate([*LETTERS, *NAMED, *STAMPS])}
END, START = TOKENS["<|endoftext|>"], TOKENS["<|startoftranscript|>"]


def config() -> dict[str, Any]:
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": len(TOKENS),
        "num_mel_bins": MELS,
        "d_model": WIDTH,
        "encoder_layers": LAYERS,
        "decoder_layers": LAYERS,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": INNER,
        "decoder_ffn_dim": INNER,
        "max_source_positions": STATES,
        "max_target_positions": POSITIONS,
        "pad_token_id": END,
        "bos_token_id": END,
        "eos_token_id": END,
        "decoder_start_token_id": START,
    }


def generation_config() -> dict[str, Any]:
    return {
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": END,
        "decoder_start_token_id": START,
        "is_multilingual": True,
        "lang_to_id": {f"<|{code}|>": TOKENS[f"<|{code}|>"] for code in ("en", "de", "yue")},
        "task_to_id": {task: TOKENS[f"<|{task}|>"] for task in ("transcribe", "translate")},
        "no_timestamps_token_id": TOKENS["<|notimestamps|>"],
        "prev_sot_token_id": TOKENS["<|startofprev|>"],
        "max_initial_timestamp_index": 25,
        "begin_suppress_tokens": [TOKENS["Ġ"], END],
        "suppress_tokens": [TOKENS["<|startofprev|>"], TOKENS["<|nospeech|>"]],
        "max_length": 40,
    }


def weights(seed: int) -> dict[str, NDArray[Any]]:  # noqa: C901 (one tensor after another)
    """Random ones, by transformers' names; rows of the vocabulary so large that texts, timestamps and ends occur."""
    random = np.random.default_rng(seed)

    def drawn(*shape: int, scale: float = 0.35) -> NDArray[Any]:
        return (scale * random.standard_normal(shape)).astype(np.float32)

    found: dict[str, NDArray[Any]] = {}

    def linear(name: str, outputs: int, inputs: int, *, bias: bool = True) -> None:
        found[f"{name}.weight"] = drawn(outputs, inputs)
        if bias:
            found[f"{name}.bias"] = drawn(outputs, scale=0.1)

    def norm(name: str) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = 1 + drawn(WIDTH, scale=0.1), drawn(WIDTH, scale=0.1)

    def attention(name: str) -> None:
        for part in ("q", "k", "v", "out"):
            linear(f"{name}.{part}_proj", WIDTH, WIDTH, bias=part != "k")

    for side in ("encoder", "decoder"):
        for layer in range(LAYERS):
            at = f"model.{side}.layers.{layer}"
            for part in ("self_attn", *(["encoder_attn"] if side == "decoder" else [])):
                attention(f"{at}.{part}")
                norm(f"{at}.{part}_layer_norm")
            linear(f"{at}.fc1", INNER, WIDTH)
            linear(f"{at}.fc2", WIDTH, INNER)
            norm(f"{at}.final_layer_norm")
        norm(f"model.{side}.layer_norm")
    for number, inputs in ((1, MELS), (2, WIDTH)):
        found[f"model.encoder.conv{number}.weight"] = drawn(WIDTH, inputs, 3)
        found[f"model.encoder.conv{number}.bias"] = drawn(WIDTH, scale=0.1)
    found["model.encoder.embed_positions.weight"] = drawn(STATES, WIDTH)
    found["model.decoder.embed_positions.weight"] = drawn(POSITIONS, WIDTH, scale=0.6)
    rows = drawn(len(TOKENS), WIDTH, scale=0.6)
    rows[START + 1 :] *= 0.6
    rows[len(LETTERS) + len(NAMED) :] *= 1.3
    rows[END] *= 1.4
    found["model.decoder.embed_tokens.weight"] = rows
    return found


def tiny_whisper(into: Path, seed: int, **generation: Any) -> Path:
    """The checkpoint; ``generation``: further keys of generation_config.json."""
    from safetensors.numpy import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    into.mkdir(parents=True, exist_ok=True)
    save_file(weights(seed), into / "model.safetensors", metadata={"format": "pt"})
    tokenizer = Tokenizer(models.BPE(vocab={token: TOKENS[token] for token in LETTERS}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in NAMED])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in STAMPS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|startoftranscript|> <|notimestamps|> $A <|endoftext|>",
        special_tokens=[(token, TOKENS[token]) for token in ("<|startoftranscript|>", "<|notimestamps|>", NAMED[0])],
    )
    tokenizer.save(str(into / "tokenizer.json"))
    ends = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>")
    extractor = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": MELS, "chunk_length": 1}
    files = {
        "config.json": config(),
        "generation_config.json": {**generation_config(), **generation},
        "preprocessor_config.json": {**extractor, "processor_class": "WhisperProcessor"},
        "tokenizer_config.json": {
            "tokenizer_class": "WhisperTokenizer",
            **ends,
            "additional_special_tokens": NAMED,
            "clean_up_tokenization_spaces": True,
        },
        "vocab.json": {token: TOKENS[token] for token in LETTERS},
    }
    for name, content in files.items():
        (into / name).write_text(json.dumps(content, indent=1))
    (into / "merges.txt").write_text("#version: 0.2\n")
    return into
