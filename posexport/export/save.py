"""Write a graph to disk, large weights beside it, readable by others, checked."""

import os
from pathlib import Path

import onnx
import onnx_ir as ir
from torch import nn

from posexport.sources.mapped import release

#: Above this much weight, weights go to a file of their own.
EXTERNAL_ABOVE = 1 << 28
#: Tensors smaller than this never leave the model: ONNX Runtime reads shape constants while it builds the graph.
KEEP_INSIDE = 1024


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initialisers."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def save(model: ir.Model, path: Path, module: nn.Module | None = None) -> None:
    """Write ``path`` (and ``.data`` beside it, of the same name) and check the result with onnx's full check.

    Weights that stand in a file of their own are written one after another, and the memory that the parameters of
    ``module``, which the model was made from, took for it is given back each time.
    """
    data = path.with_name(f"{path.name}.data")
    if weight_bytes(model) > EXTERNAL_ABOVE:
        parameters = [] if module is None else list(module.parameters())
        ir.save(
            model,
            path,
            external_data=data.name,
            size_threshold_bytes=KEEP_INSIDE,
            callback=lambda *_: release(parameters),
        )
        release(parameters)
    else:
        ir.save(model, path)
    umask = os.umask(0)
    os.umask(umask)
    for name in (path, data):
        if name.exists():
            name.chmod(0o666 & ~umask)
    onnx.checker.check_model(str(path), full_check=True)
