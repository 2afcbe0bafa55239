"""Graphs that several tests export, traced once in a process: tracing is nine tenths of what a small model costs.

A graph is known by its module's numbers and settings, not by the code that ran: a module of tests that replaces code
of the product while a model is traced is marked ``fresh``, and so is one that asks whether two traces are equal.
"""

import copy
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

from posexport.conversion.export.trace import trace
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
    parts = (source.inputs, source.outputs, source.limits, source.module)
    pickler = _Pickler(file, protocol=5)
    pickler.fast = True  # by value: whether two equal lists are one takes no part
    try:
        pickler.dump(parts)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError, RecursionError):
        return None
    return hashlib.sha256(file.getvalue()).hexdigest()


def copied(model: ir.Model, *, weights: bool) -> ir.Model:
    """A copy that shares nothing that a pass changes; ``weights``: nor the module's tensors, which a test may change.

    `ir.Model.clone` lets two values share the object that holds their type, and all tensors. Names that passes give to
    new nodes count from 0 in a copy: nothing else differs.
    """
    made = model.clone()
    for graph in made.graphs():
        outputs = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *outputs):
            value.type = copy.copy(value.type)
        for value in graph.initializers.values() if weights else ():
            tensor = value.const_value
            assert tensor is not None
            value.const_value = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)
    return made


class Traces:
    """In the place of `trace`: the first call for a source traces, and its graph is what `trace` returned.

    Later calls for an equal source get copies of that graph as it was then, which never was a file. Every process
    traces for itself; only with ``folder``, which ci/lab/mutants gives, do processes share graphs, as files.

    ``fresh``: trace every time, as the product does.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.fresh = False
        self._held: dict[str, ir.Model] = {}
        if folder is not None:
            folder.mkdir(exist_ok=True)

    def __call__(self, source: Source, opset: int, *, optimize: bool = True) -> ir.Model:
        fingerprinted = None if self.fresh else fingerprint(source)
        if fingerprinted is None:
            return trace(source, opset, optimize=optimize)
        key = f"{fingerprinted}-{opset}-{optimize}"
        if key in self._held:
            return copied(self._held[key], weights=False)
        if self.folder is not None and (file := self.folder / f"{key}.onnx").exists():
            return ir.from_proto(onnx.ModelProto.FromString(file.read_bytes()))
        model = trace(source, opset, optimize=optimize)
        self._held[key] = copied(model, weights=True)
        if self.folder is not None:
            part = file.with_suffix(f".{os.getpid()}")
            part.write_bytes(ir.to_proto(model).SerializeToString())
            part.replace(file)
        return model
