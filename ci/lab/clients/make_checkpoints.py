"""Writes small checkpoints in the files that people download, and what transformers answers.

``make_checkpoints.py FOLDER``, by a Python with transformers 4.57. FOLDER/NAME has the files of SmolLM2,
Qwen3-Embedding, openai's CLIP and wav2vec2-base-960h, with random weights and transformers' own classes, tokenizers and
processors; FOLDER/job.json what every client is asked; FOLDER/expected.json the answers.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = ["a photo of a cat", "The moon is far from here.", "Mice", "dogs sleep while cats wait for the mice to come"]
CORPUS = [*TEXTS, "what do cats eat, and where do they sleep at night? Who knows: the moon is a stone."] * 3
PROMPTS = ["The moon", "what do cats", "Mice and dogs sleep"]
NEW_TOKENS = 24
SIDE = 32
INSTRUCTION = "Instruct: Given a web search query, retrieve passages\nQuery:"


def drawn(model: torch.nn.Module, seed: int) -> Any:
    """Random weights at which positions matter."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
        elif name.endswith("bias"):
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def byte_level(specials: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=specials, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def smollm2(folder: Path) -> dict[str, Any]:
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = transformers.GPT2TokenizerFast(
        tokenizer_object=byte_level(specials), bos_token=specials[0], eos_token=specials[0], unk_token=specials[0]
    )
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=36,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        rope_theta=100000,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = drawn(transformers.LlamaForCausalLM(config), 1)
    model.lm_head.weight.data[0] = 0  # the end token is never the best
    model.save_pretrained(folder)
    tokens = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")
        answer = model.generate(**ids, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
        tokens.append(answer[0, ids["input_ids"].shape[1] :].tolist())
    return {"tokens": tokens}


def qwen3_embedding(folder: Path) -> dict[str, Any]:
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    inner = byte_level(specials)
    inner.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer = transformers.Qwen2TokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    tokenizer.save_pretrained(folder)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=36,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        rope_theta=1000000,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = drawn(transformers.Qwen3Model(config), 2)
    model.save_pretrained(folder)
    path = folder / "config.json"
    # the downloaded one names the class for generation and has the tensors of the model without a head
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["Qwen3ForCausalLM"]}, indent=2))
    package = "sentence_transformers.models"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{package}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{package}.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{package}.Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    (folder / "1_Pooling").mkdir()
    flags = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    pooling = {f"pooling_mode_{flag}": flag == "lasttoken" for flag in flags}
    pooling |= {"word_embedding_dimension": 36, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=2))
    settings = {
        "prompts": {"query": INSTRUCTION, "document": ""},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings, indent=2))
    with torch.inference_mode():
        states = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).last_hidden_state[:, -1]
    return {"embeddings": torch.nn.functional.normalize(states, dim=-1).tolist()}


def clip(folder: Path, pixels: np.ndarray[Any, Any]) -> dict[str, Any]:
    inner = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<|endoftext|>"))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False
    )
    inner.train_from_iterator([" ".join(CORPUS).replace(" ", "\n")], trainer)
    data = json.loads(inner.to_str())["model"]
    vocabulary = dict(data["vocab"])
    for byte in alphabet:
        vocabulary.setdefault(f"{byte}</w>", len(vocabulary))
    for special in ("<|startoftext|>", "<|endoftext|>"):
        vocabulary[special] = len(vocabulary)  # last, as in openai's: the end is found as the largest id
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in data["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    tokenizer = transformers.CLIPTokenizerFast(
        str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=20
    )
    images = transformers.CLIPImageProcessor(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}, do_center_crop=True
    )
    processor = transformers.CLIPProcessor(images, tokenizer)
    processor.save_pretrained(folder)
    config = transformers.CLIPConfig(
        text_config={
            "vocab_size": len(vocabulary),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 20,
            "projection_dim": 16,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        vision_config={
            "hidden_size": 36,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "image_size": SIDE,
            "patch_size": 8,
            "projection_dim": 16,
        },
        projection_dim=16,
    )
    model = drawn(transformers.CLIPModel(config), 3)
    model.save_pretrained(folder)
    given = processor(text=TEXTS, images=Image.fromarray(pixels), padding=True, return_tensors="pt")
    with torch.inference_mode():
        answer = model(**given)
    return {"logits_per_image": answer.logits_per_image.tolist(), "image_embeds": answer.image_embeds.tolist()}


def wav2vec2(folder: Path, sound: np.ndarray[Any, Any]) -> dict[str, Any]:
    folder.mkdir()
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSRDLUMWCFGYPBVK'XJQZ"]
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=False)
    transformers.Wav2Vec2Processor(extractor, tokenizer).save_pretrained(folder)
    config = transformers.Wav2Vec2Config(
        vocab_size=len(vocabulary),
        hidden_size=36,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=6,
        conv_dim=[16] * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        pad_token_id=0,
    )
    model = drawn(transformers.Wav2Vec2ForCTC(config), 4)
    model.save_pretrained(folder)
    given = extractor(sound, sampling_rate=16000, return_tensors="pt")
    with torch.inference_mode():
        logits = model(given["input_values"]).logits
    return {"logits": logits.tolist()}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(28)
    pixels = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    time = np.arange(9000) / 16000
    sound = (np.sin(2 * np.pi * 220 * time * (1 + time)) + 0.1 * rng.standard_normal(len(time))).astype(np.float32)
    expected = {
        "smollm2": smollm2(folder / "smollm2"),
        "qwen3-embedding": qwen3_embedding(folder / "qwen3-embedding"),
        "clip": clip(folder / "clip", pixels),
        "wav2vec2": wav2vec2(folder / "wav2vec2", sound),
    }
    job = {"texts": TEXTS, "prompts": PROMPTS, "new_tokens": NEW_TOKENS, "side": SIDE}
    job |= {"pixels": pixels.reshape(-1).tolist(), "sound": sound.tolist()}
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
