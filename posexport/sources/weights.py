"""Seeded random weights in which positions matter, and the digest of a module's weights."""

import hashlib

import torch
from torch import nn

from posexport.encodings.encoding import Encoding
from posexport.models.conformer import FixedBatchNorm
from posexport.nn.norms import RMSNorm


def draw(module: nn.Module, seed: int) -> None:
    """Fill all parameters: projections keep the scale of their inputs, tables and embeddings have entries of size 1.

    Entries this large make attention pick out positions, so that a lost or shifted position shows far above rounding.
    """
    generator = torch.Generator().manual_seed(seed)
    tables = {id(p) for m in module.modules() if isinstance(m, Encoding) for p in m.parameters(recurse=False)}
    norms = {id(m.weight) for m in module.modules() if isinstance(m, nn.LayerNorm | RMSNorm | FixedBatchNorm)}
    norms |= {id(m.variance) for m in module.modules() if isinstance(m, FixedBatchNorm)}
    convolutions = {id(m.weight) for m in module.modules() if isinstance(m, nn.Conv1d | nn.Conv2d)}
    embeddings = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if id(parameter) in tables | embeddings:
                parameter.copy_(noise)
            elif id(parameter) in norms:
                parameter.copy_(1 + 0.1 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.1 * noise)
            else:
                mapped = parameter[0].numel() if id(parameter) in convolutions else parameter.shape[-1]
                parameter.copy_(noise * mapped**-0.5)


def digest(module: nn.Module) -> str:
    """sha256 of all parameters and buffers, by name."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        sha256.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        sha256.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha256.hexdigest()
