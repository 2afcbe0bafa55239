"""Write a graph to disk with external data for large weights, and check it."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from torch import nn

from posexport.base.options.recipe import Recipe
from posexport.base.spec import as_metadata
from posexport.graph import encoded
from posexport.graph.queries import weight_bytes
from posexport.graph.transposed import InParts, contiguous, parts
from posexport.sources.memory_mapped import release
from posexport.sources.source import Source
from posexport.version import VERSION


def fill_metadata(model: ir.Model, source: Source, lowerings: dict[str, str], recipe: Recipe) -> None:
    """Name the producer and write ``posexport.*`` entries, each a string or a JSON value."""
    model.producer_name = "posexport"
    model.producer_version = VERSION
    model.graph.name = "".join(c if c.isalnum() else "_" for c in source.public_name)[-60:]
    entries: dict[str, object] = {
        "source": {
            "name": source.public_name,
            "kind": source.kind,
            "sha256": source.sha256,
            **({} if source.revision is None else {"revision": source.revision}),
        },
        **source.metadata,
        "lowerings": lowerings,
        "recipe": recipe,
        "version": VERSION,
    }
    for key, value in entries.items():
        model.metadata_props[f"posexport.{key}"] = as_metadata(value)


#: Above this many bytes, weights are external data.
EXTERNAL_ABOVE = 1 << 28
#: Tensors smaller than this never leave the model: ONNX Runtime reads shape constants while it builds the graph.
KEEP_INSIDE = 1024
#: weights in a file that several graphs read begin at multiples of this, so that they can be mapped
_ALIGNED = 4096


class Store(ABC):
    """Where the weights of a model's graphs go."""

    @abstractmethod
    def write(self, model: ir.Model, path: Path, module: nn.Module | None) -> None:
        """Write ``model`` to ``path`` and weights next to it, never above it."""


@dataclass(frozen=True)
class OwnFile(Store):
    """Large weights in a file for every graph, which has the graph's name and ``suffix``.

    They are written one after another; each time the memory of the module's parameters that they were made from is
    freed.
    """

    suffix: str = ".data"

    def write(self, model: ir.Model, path: Path, module: nn.Module | None) -> None:
        parameters = [] if module is None else list(module.parameters())
        if weight_bytes(model) <= EXTERNAL_ABOVE:
            proto = ir.to_proto(model)
            release(parameters)
            encoded.write(proto, path)
            return
        data = path.with_name(path.name + self.suffix)
        _copy_in_order(model)
        ir.save(
            model,
            path,
            external_data=data.name,
            size_threshold_bytes=KEEP_INSIDE,
            callback=lambda *_: release(parameters),
        )
        release(parameters)


@dataclass
class SharedFile(Store):
    """All graphs' weights in one file ``name``, equal ones once: several graphs of one model share most of theirs.

    Only for graphs of one directory that are written in turn; small weights go there too.
    """

    name: str
    #: offset and length by what tells tensors apart
    _kept: dict[bytes, tuple[int, int]] = field(default_factory=dict)

    def write(self, model: ir.Model, path: Path, module: nn.Module | None) -> None:
        """As `Store.write`; what an earlier graph wrote is read from there."""
        data = path.with_name(self.name)
        parameters = [] if module is None else list(module.parameters())
        with data.open("ab") as file:
            for value in model.graph.initializers.values():
                tensor = value.const_value
                if tensor is None or tensor.nbytes < KEEP_INSIDE or value.is_graph_input():
                    continue
                raw, shape = _in_bytes(tensor), ir.Shape(tensor.shape)  # type: ignore[arg-type]  # constants have sizes
                key = hashlib.sha256(raw.data if raw.size else b"").digest()
                key += repr((str(tensor.dtype), shape.numpy())).encode()
                if key not in self._kept:
                    file.write(b"\0" * (-file.tell() % _ALIGNED))
                    self._kept[key] = (file.tell(), raw.nbytes)
                    file.write(raw.data)
                offset, length = self._kept[key]
                value.const_value = ir.ExternalTensor(
                    self.name,
                    offset,
                    length,
                    tensor.dtype,
                    shape=shape,
                    name=value.name or "",
                    base_dir=path.parent,
                )
                del raw
                release(parameters)
        ir.save(model, path)


def _in_bytes(tensor: ir.TensorProtocol) -> NDArray[np.uint8]:
    """The bytes of a file: in order, two numbers of 4 bits in each."""
    if tensor.dtype.bitwidth < 8:
        return np.frombuffer(tensor.tobytes(), np.uint8)
    return contiguous(tensor.numpy()).reshape(-1).view(np.uint8)  # of bfloat16 there is no buffer


def _copy_in_order(model: ir.Model) -> None:
    """Large weights become contiguous while they are written, one at a time."""
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < KEEP_INSIDE or isinstance(tensor, ir.ExternalTensor | InParts):
            continue
        if tensor.dtype.bitwidth >= 8:  # smaller numbers are packed by onnx-ir
            sizes = ir.Shape(tensor.shape)  # type: ignore[arg-type]  # constants have sizes
            whole, in_parts = partial(_same, tensor), partial(_parts, tensor)
            value.const_value = InParts(whole, in_parts, tensor.dtype, sizes, name=tensor.name)


def _same(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return tensor


def _parts(tensor: ir.TensorProtocol) -> Iterator[NDArray[Any]]:
    array = tensor.numpy()
    yield from parts(array, array.dtype)


def save(model: ir.Model, path: Path, module: nn.Module | None = None, store: Store | None = None) -> None:
    """Write ``path``, weights as ``store`` says (`OwnFile`), and check the result with onnx's full check."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (store or OwnFile()).write(model, path, module)
    onnx.checker.check_model(str(path), full_check=True)
