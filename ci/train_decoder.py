"""Trains a small Llama to under half the unigram perplexity of held-out text, and writes it as a checkpoint.

The text is the documentation of Python's standard library. Random weights say nothing about what a precision costs: a
trained model has preferences that rounding can change.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn

from ci.documentation import paragraphs
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.directory import Directory
from posexport.sources.huggingface.families import FAMILIES
from posexport.sources.huggingface.plan import Plan

BEGIN, END = "<s>", "</s>"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 240,
    "num_hidden_layers": 4,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "head_dim": 48,
    "intermediate_size": 640,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}
#: of the text, the last paragraphs: not trained on
HELD_OUT = 0.05
LENGTH, BATCH = 128, 12
RATE, WARM_UP = 2e-3, 60


def main() -> int:
    """Exit code 1 where the model did not learn."""
    parser = argparse.ArgumentParser(prog="ci/train-decoder", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=500, help="default: 500")
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    train, held_out = texts()
    tokenizer = train_tokenizer(train)
    (args.directory / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (args.directory / "tokenizer.json").write_text(tokenizer.to_str())
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END}
    (args.directory / "tokenizer_config.json").write_text(json.dumps(settings) + "\n")
    plan = FAMILIES["llama"].build(Config(Directory(args.directory)), "text-generation")
    model = initialized(plan)
    ids, later = (stream(tokenizer, each) for each in (train, held_out))
    fit(model, ids, args.steps)
    before, after = unigram_perplexity(ids, later), perplexity(model, later)
    print(f"held-out perplexity {after:.1f}, of unigrams {before:.1f}, {len(later)} tokens", flush=True)
    weights = {origin.names[0]: model.get_parameter(name).detach() for name, origin in plan.origins.items()}
    save_file({name: weight.contiguous() for name, weight in weights.items()}, args.directory / "model.safetensors")
    return 0 if after < before / 2 else 1


def texts() -> tuple[list[str], list[str]]:
    """Paragraphs to train on, and those that are held out."""
    every = paragraphs()
    cut = int(len(every) * (1 - HELD_OUT))
    return every[:cut], every[cut:]


def train_tokenizer(train: list[str]) -> Tokenizer:
    """Byte-level BPE; every text begins with BEGIN."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"], special_tokens=[BEGIN, END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(train, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    return tokenizer


def stream(tokenizer: Tokenizer, each: list[str]) -> Tensor:
    """All texts in one row of ids, each with its begin and its end."""
    end = tokenizer.token_to_id(END)
    coded = tokenizer.encode_batch(each)
    return torch.tensor([token for text in coded for token in (*text.ids, end)])


def initialized(plan: Plan) -> nn.Module:
    """The definition with random weights."""
    model = plan.model.to_empty(device="cpu")
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            nn.init.ones_(parameter) if name.endswith("weight") else nn.init.zeros_(parameter)
        else:
            nn.init.normal_(parameter, std=0.02)
    return model


def logits(model: nn.Module, ids_BT: Tensor) -> Tensor:
    """[B, T, vocabulary], with an empty cache."""
    feeds: dict[str, Tensor] = {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT)}
    for spec in model.inputs:  # type: ignore[union-attr]  # of a definition
        if spec.role == "cache":
            sizes = [axis if isinstance(axis, int) else 0 for axis in spec.axes]
            feeds[spec.name] = torch.zeros([len(ids_BT), *sizes[1:]])
        elif spec.role == "positions":
            feeds[spec.name] = torch.arange(ids_BT.shape[1]).expand_as(ids_BT)
    answer: Tensor = model(**feeds)[0]
    return answer


def loss(model: nn.Module, ids_BT: Tensor) -> Tensor:
    """Mean cross entropy of the next token, in nats."""
    scores = logits(model, ids_BT[:, :-1])
    return nn.functional.cross_entropy(scores.flatten(0, 1), ids_BT[:, 1:].flatten())


def fit(model: nn.Module, ids: Tensor, steps: int) -> None:
    """AdamW with a warm-up and a cosine."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARM_UP) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
    )
    started = time.monotonic()
    model.train()
    for step in range(steps):
        starts = torch.randint(len(ids) - LENGTH - 1, (BATCH,))
        value = loss(model, torch.stack([ids[start : start + LENGTH + 1] for start in starts]))
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(
                f"step {step}: perplexity {math.exp(value.item()):.1f}, {time.monotonic() - started:.0f} s", flush=True
            )
    model.eval()


@torch.inference_mode()
def perplexity(model: nn.Module, ids: Tensor) -> float:
    """Over windows of `LENGTH` tokens."""
    windows = ids[: len(ids) // (LENGTH + 1) * (LENGTH + 1)].unflatten(0, (-1, LENGTH + 1))
    return math.exp(torch.stack([loss(model, window) for window in windows.split(BATCH)]).mean().item())


def unigram_perplexity(train: Tensor, held_out: Tensor) -> float:
    """Of a model that knows only how frequent each token is."""
    counts = torch.bincount(train, minlength=CONFIG["vocab_size"]).double() + 1
    return math.exp(-(counts / counts.sum()).log()[held_out].mean().item())


if __name__ == "__main__":
    sys.exit(main())
