"""Graphs that several tests export, traced once in a test run: tracing is nine tenths of what a small model costs.

A graph is known by its module's numbers and settings, not by the code that ran: a module of tests that replaces code
of the product while a model is traced is marked ``fresh``, and so is one that asks whether two traces are equal.
"""

import functools
import hashlib
import io
import os
import pickle
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
from torch import nn

from posexport.export.trace import trace
from posexport.sources.source import Source


class _Pickler(pickle.Pickler):
    """Tensors by their numbers, whatever they are views of; nothing that an object has computed and kept."""

    def reducer_override(self, thing: object) -> object:
        if type(thing) in (torch.Tensor, nn.Parameter):
            assert isinstance(thing, torch.Tensor)
            numbers = thing.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if thing.numel() else b""
            return str, (f"{thing.dtype} {list(thing.shape)} {hashlib.sha256(numbers).hexdigest()}",)
        names = {name for part in type(thing).__mro__ for name, value in vars(part).items() if _kept(value)}
        if names and hasattr(thing, "__dict__"):
            return list, ([type(thing).__qualname__, {n: v for n, v in vars(thing).items() if n not in names}],)
        return NotImplemented


def _kept(value: object) -> bool:
    return isinstance(value, functools.cached_property)


def fingerprint(source: Source) -> str | None:
    """Of everything that a trace depends on; None for a user's module, and for one that cannot be pickled."""
    if source.kind == "python":
        return None
    file = io.BytesIO()
    parts = (source.inputs, source.outputs, source.envelope, source.module)
    pickler = _Pickler(file, protocol=5)
    pickler.fast = True  # by value: whether two equal lists are one takes no part
    try:
        pickler.dump(parts)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError, RecursionError):
        return None
    return hashlib.sha256(file.getvalue()).hexdigest()


class Traces:
    """In the place of `trace`: a copy of the graph that an equal source gave, in ``folder``, for all processes.

    ``fresh``: trace anew, as the product does.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fresh = False
        folder.mkdir(exist_ok=True)

    def __call__(self, source: Source, opset: int, *, optimize: bool = True) -> ir.Model:
        key = None if self.fresh else fingerprint(source)
        if key is None:
            return trace(source, opset, optimize=optimize)
        file = self.folder / f"{key}-{opset}-{optimize}.onnx"
        if not file.exists():
            part = file.with_suffix(f".{os.getpid()}")
            part.write_bytes(ir.to_proto(trace(source, opset, optimize=optimize)).SerializeToString())
            part.replace(file)
        return ir.from_proto(onnx.ModelProto.FromString(file.read_bytes()))
