"""Write a graph to disk, large weights beside it, readable by others, checked."""

import os
from pathlib import Path

import onnx
import onnx_ir as ir

#: Above this much weight, weights go to a file of their own.
EXTERNAL_ABOVE = 1 << 30
#: Tensors smaller than this never leave the model: ONNX Runtime reads shape constants while it builds the graph.
KEEP_INSIDE = 1024
DATA_NAME = "model.onnx.data"


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initialisers."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def save(model: ir.Model, path: Path) -> None:
    """Write ``path`` (and ``model.onnx.data`` beside it) and check the result with onnx's full check."""
    if weight_bytes(model) > EXTERNAL_ABOVE:
        ir.save(model, path, external_data=DATA_NAME, size_threshold_bytes=KEEP_INSIDE)
    else:
        ir.save(model, path)
    umask = os.umask(0)
    os.umask(umask)
    for name in (path, path.with_name(DATA_NAME)):
        if name.exists():
            name.chmod(0o666 & ~umask)
    onnx.checker.check_model(str(path), full_check=True)
