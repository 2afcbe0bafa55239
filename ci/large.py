"""Peak memory of converting, proving and running a decoder of over 2 GB of weights, as ratios to those weights.

The checkpoint is drawn here, in transformers' layout for llama, a shard a layer, so that drawing needs little memory
itself. Weights are counted in float32, as they are exported. Every command runs in a process of its own, which is
watched from outside: its resident memory is anonymous (its own, nothing but swap could take it back) or pages of files
that it has mapped (the system takes them back whenever it needs memory).
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

#: times the weights
MOST = 1.6
KINDS = ("VmRSS", "RssAnon", "RssFile", "RssShmem")
#: greedy tokens by the runtime, which needs no tokenizer for ids
GENERATE = "import sys, posexport; posexport.load(sys.argv[1]).generate([[5, 6, 7, 8]], max_new_tokens=8)"
#: seconds between two looks at a process; its highest VmRSS is the kernel's own count (VmHWM) and misses nothing
PAUSE = 0.02


def main() -> int:
    """Exit code 1: a command failed, or took more than `MOST` times the weights."""
    parser = argparse.ArgumentParser(prog="ci/large", description=__doc__)
    parser.add_argument("--stored", choices=["float32", "bfloat16"], nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--hidden", type=int, default=1536)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocab", type=int, default=32003)
    parser.add_argument("--intermediate", type=int, default=3072)
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--only", nargs="*", help="these steps, not all")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    sizes = {
        "hidden_size": args.hidden,
        "num_hidden_layers": args.layers,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "intermediate_size": args.intermediate,
        "vocab_size": args.vocab,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": args.tied,
    }
    rows = []
    for stored in args.stored:
        with tempfile.TemporaryDirectory(prefix="posexport-large-") as folder:
            rows += measure(Path(folder), sizes, stored, args.only)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    bad = [row for row in rows if row["exit"] or row["VmHWM"] > MOST]
    return 1 if bad else 0


def measure(folder: Path, sizes: dict[str, object], stored: str, only: list[str] | None) -> Iterator[dict]:
    """Draw a checkpoint, run the steps, print a row of ratios for each."""
    checkpoint = folder / "checkpoint"
    weights = draw(checkpoint, sizes, stored)
    tied = ", tied head" if sizes["tie_word_embeddings"] else ""
    files = len(list(checkpoint.glob("*.safetensors")))
    print(f"{weights / 1e9:.2f} GB of weights in float32, stored in {stored}, {files} files{tied}; peaks, times that:")
    print(f"{'step':22} {'seconds':>8} {'VmHWM':>8} {'RssAnon':>8} {'RssFile':>8}")
    posexport = [sys.executable, "-m", "posexport"]
    lengths = [text for length in (1, 2, 17) for text in ("--length", str(length))]
    bundle, proven = str(folder / "bundle"), str(folder / "proven")
    steps = {
        "convert": [*posexport, "convert", str(checkpoint), "-o", bundle, "--no-verify"],
        "generate": [sys.executable, "-c", GENERATE, bundle],
        "convert, proven": [*posexport, "convert", str(checkpoint), "-o", proven, *lengths],
        "verify": [*posexport, "verify", proven],
        "verify --against": [*posexport, "verify", proven, "--against", str(checkpoint), "--length", "2"],
    }
    for name, command in steps.items():
        if only is not None and name not in only:
            continue
        if name == "convert, proven" and Path(bundle).exists():
            shutil.rmtree(folder / "bundle")
        started = time.perf_counter()
        peaks = watch(command, folder / "log")
        ratios = {kind: peaks[kind] / weights for kind in (*KINDS, "VmHWM")}
        print(
            f"{name:22} {time.perf_counter() - started:8.1f} {ratios['VmHWM']:8.2f} {ratios['RssAnon']:8.2f} "
            f"{ratios['RssFile']:8.2f}",
            flush=True,
        )
        if peaks["exit"]:
            print((folder / "log").read_text()[-2000:])
        yield {"step": name, "stored": stored, "weights": weights, "exit": peaks["exit"], **ratios}


def draw(directory: Path, sizes: dict[str, object], stored: str) -> int:
    """Write a checkpoint of random weights, a file a layer; gives the bytes of its weights in float32."""
    import torch
    from safetensors.torch import save_file

    directory.mkdir()
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": stored,
        **sizes,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    generator = torch.Generator().manual_seed(41000)
    parts = list(layout(sizes))
    weight_map, total = {}, 0
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05}-of-{len(parts):05}.safetensors"
        tensors = {}
        for tensor, shape in part.items():
            noise = torch.randn(shape, generator=generator)
            value = 1 + 0.1 * noise if len(shape) == 1 else noise.mul_(1.0 if "embed" in tensor else shape[-1] ** -0.5)
            tensors[tensor] = value.to(getattr(torch, stored))
            weight_map[tensor] = name
            total += 4 * math.prod(shape)
        save_file(tensors, directory / name, metadata={"format": "pt"})
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def layout(sizes: dict) -> Iterator[dict[str, tuple[int, ...]]]:
    """Names and shapes of a llama's tensors, file by file."""
    hidden, inner, vocab = sizes["hidden_size"], sizes["intermediate_size"], sizes["vocab_size"]
    shared = hidden // sizes["num_attention_heads"] * sizes["num_key_value_heads"]
    yield {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(sizes["num_hidden_layers"]):
        stem = f"model.layers.{layer}."
        yield {
            f"{stem}self_attn.q_proj.weight": (hidden, hidden),
            f"{stem}self_attn.k_proj.weight": (shared, hidden),
            f"{stem}self_attn.v_proj.weight": (shared, hidden),
            f"{stem}self_attn.o_proj.weight": (hidden, hidden),
            f"{stem}mlp.gate_proj.weight": (inner, hidden),
            f"{stem}mlp.up_proj.weight": (inner, hidden),
            f"{stem}mlp.down_proj.weight": (hidden, inner),
            f"{stem}input_layernorm.weight": (hidden,),
            f"{stem}post_attention_layernorm.weight": (hidden,),
        }
    yield {"model.norm.weight": (hidden,)} | (
        {} if sizes["tie_word_embeddings"] else {"lm_head.weight": (vocab, hidden)}
    )


def watch(command: list[str], log: Path) -> dict[str, int]:
    """Run a command to its end: the highest bytes of each kind of memory, and the exit code."""
    peaks = dict.fromkeys((*KINDS, "VmHWM"), 0)
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            for line in status.read_text().splitlines():
                name, _, value = line.partition(":")
                if name in peaks:
                    peaks[name] = max(peaks[name], int(value.split()[0]) * 1024)
            time.sleep(PAUSE)
    return {**peaks, "exit": process.returncode}


if __name__ == "__main__":
    sys.exit(main())
