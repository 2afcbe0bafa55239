"""Checkpoints of deployed shapes with random weights, as their folders are on the Hub.

transformers' class on the meta device says which tensors there are; each is drawn by its name and written in pieces, so
that a shard never is in memory.
"""

import json
import math
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from torch import Tensor

from ci.lab.deployed.tokenizers import TOKENIZERS
from ci.lab.trained.fetch import fetched

SHAPES: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("shapes.yaml").read_text())
#: bytes of a shard, as on the Hub
_SHARD = 5_000_000_000
#: numbers drawn at a time
_PIECE = 2**24
_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_DEPTHS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "depth")


def make(name: str, folder: Path, layers: int | None = None) -> None:
    """Write a checkpoint; ``layers``: of that many layers, where its weights are random."""
    shape = SHAPES[name]
    if "package" in shape:
        shutil.copytree(fetched(shape["package"]) / shape["folder"], folder, dirs_exist_ok=True)
        return
    config = shape["config"] if layers is None else cut(shape["config"], layers)
    for file, content in {"config.json": config, **shape.get("files", {})}.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(json.dumps(content, indent=2))
    TOKENIZERS[shape["tokenizer"]](config, folder)
    dtype = getattr(torch, config.get("torch_dtype", "float32"))
    write_weights(tensors(folder, shape.get("renames", {})), dtype, folder)


def cut(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """The configuration with its first layers only."""
    found = {key: cut(value, layers) if isinstance(value, dict) else value for key, value in config.items()}
    found |= {key: min(layers, found[key]) for key in _DEPTHS if key in found}
    if "layer_types" in found:
        found["layer_types"] = found["layer_types"][:layers]
    for key in ("full_attn_idxs", "fullatt_block_indexes"):
        if key in found:
            found[key] = [index for index in found[key] if index < layers]
    return found


def tensors(folder: Path, renames: dict[str, str]) -> dict[str, Tensor]:
    """The tensors of a folder's file by name, without values; a tied one is there once."""
    config = transformers.AutoConfig.from_pretrained(folder)
    (architecture,) = config.architectures
    with torch.device("meta"):
        model = getattr(transformers, architecture)(config)
    found: dict[str, Tensor] = {}
    for key, tensor in model.named_parameters():  # which names a tied one once
        for pattern, name in renames.items():
            key = re.sub(pattern, name, key)
        found[key] = tensor
    return found


def write_weights(found: dict[str, Tensor], dtype: torch.dtype, folder: Path) -> None:
    """model.safetensors, or its shards and their index."""
    shards: list[dict[str, Tensor]] = [{}]
    room = _SHARD
    for key, tensor in found.items():
        size = tensor.numel() * dtype.itemsize
        if size > room and shards[-1]:
            shards.append({})
            room = _SHARD
        shards[-1][key] = tensor
        room -= size
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = ["model.safetensors"]
    else:
        total = sum(tensor.numel() for tensor in found.values()) * dtype.itemsize
        where = {key: file for file, shard in zip(names, shards, strict=True) for key in shard}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    for file, shard in zip(names, shards, strict=True):
        write_shard(shard, dtype, folder / file)


def write_shard(shard: dict[str, Tensor], dtype: torch.dtype, path: Path) -> None:
    """A safetensors file: the length of its header, the header, the tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, tensor in shard.items():
        start, end = end, end + tensor.numel() * dtype.itemsize
        header[key] = {"dtype": _TYPES[dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for key, tensor in shard.items():
            file.writelines(piece.to(dtype).view(torch.uint8).numpy().data for piece in drawn(key, tensor))


def drawn(key: str, tensor: Tensor) -> Iterator[Tensor]:
    """A tensor's values in pieces, of the scale that training leaves, so that they stay finite in any depth."""
    if key.endswith("encoder.embed_positions.weight"):
        yield sinusoids(*tensor.shape).flatten()
        return
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    centre = 1.0 if re.search(r"norm\w*\.weight$|ln_q\.weight$|\.D$", key, re.IGNORECASE) else 0.0
    for start in range(0, tensor.numel(), _PIECE):
        piece = torch.randn(min(_PIECE, tensor.numel() - start), generator=generator)
        # Mamba: decays of one to as many as there are heads
        yield piece.abs().add(1).log() if key.endswith("A_log") else piece.mul(0.02).add(centre)


def sinusoids(length: int, channels: int) -> Tensor:
    """Whisper's encoder stores these positions."""
    rates = torch.exp(-math.log(10000) / (channels // 2 - 1) * torch.arange(channels // 2))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)
